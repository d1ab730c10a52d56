"""Which kind of place a guard's URL leads to: tables, keys of etcd, or nodes of ZooKeeper.

Promise: a store's client is imported only for a URL of that store. Never: a connection made.
"""

from importlib import import_module

from fencelock.errors import UnsupportedError
from fencelock.stores.registry import guard_store
from fencelock_lab.campaigns.dialects import DIALECTS
from fencelock_lab.campaigns.plan import CampaignSettings
from fencelock_lab.campaigns.target import Target

KINDS = dict.fromkeys(DIALECTS, "tables:TablePlace") | {"etcd": "keys:EtcdPlace", "zookeeper": "nodes:ZooKeeperPlace"}


def make_place(settings: CampaignSettings, number: int) -> Target:
    """Return the resources of one lock; those of a negative control have a broken guard.

    UnsupportedError if a campaign cannot write to the guard's store.
    """
    if settings.control is not None:
        from fencelock_lab.campaigns.negative_controls import CONTROLS

        return CONTROLS[settings.control](settings, number)
    guard_store(settings.guard)  # A URL that is not understood, or a client that is not installed, is told of first.
    scheme = settings.guard.partition("://")[0].lower()
    if scheme not in KINDS:
        known = ", ".join(f"{one}://" for one in sorted(KINDS))
        raise UnsupportedError(f"a campaign cannot write to a guard at {scheme}:// yet; it can at {known}")
    module, _, name = KINDS[scheme].partition(":")
    kind: type[Target] = getattr(import_module(f"{__package__}.{module}"), name)
    return kind(settings, number)
