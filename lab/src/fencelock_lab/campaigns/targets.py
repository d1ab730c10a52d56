"""Which kind of target a guard's URL leads to: tables, keys of etcd, or nodes of ZooKeeper.

Promise: a store's client is imported only for a URL of that store. Never makes a connection.
"""

from importlib import import_module

from fencelock.errors import UnsupportedError
from fencelock_lab.campaigns.dialects import DIALECTS
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.target import Target

TARGETS = dict.fromkeys(DIALECTS, "table_target:TableTarget") | {
    "etcd": "etcd_target:EtcdTarget",
    "zookeeper": "zookeeper_target:ZooKeeperTarget",
}


def make_target(settings: CampaignSettings, number: int) -> Target:
    """Return the resources of one lock; a negative control has a broken guard, or breaks what protects them.

    UnsupportedError if a campaign cannot write to the guard's store.
    """
    if settings.control is None:
        return _real_target(settings, number)
    from fencelock_lab.campaigns.controls import MISUSES
    from fencelock_lab.campaigns.file_guards import FILE_GUARDS

    if settings.control in FILE_GUARDS:
        return FILE_GUARDS[settings.control](settings, number)
    target = _real_target(settings, number)
    target.misuse = MISUSES[settings.control](settings, target)
    return target


def _real_target(settings: CampaignSettings, number: int) -> Target:
    settings.guard_of(number)  # Raises first what is wrong with the URL, or that a client is missing.
    scheme = settings.guard.partition("://")[0].lower()
    if scheme not in TARGETS:
        known = ", ".join(f"{one}://" for one in sorted(TARGETS))
        raise UnsupportedError(f"a campaign cannot write to a guard at {scheme}:// yet; it can at {known}")
    module, _, name = TARGETS[scheme].partition(":")
    kind: type[Target] = getattr(import_module(f"{__package__}.{module}"), name)
    return kind(settings, number)
