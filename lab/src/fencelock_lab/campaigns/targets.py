"""Which kind of target a guard's URL leads to: tables, keys of etcd, nodes of ZooKeeper, or texts of a user's own guard
or service.

Promise: a store's client is imported only for a URL of that store. Never makes a connection.
"""

from importlib import import_module

from fencelock.errors import UnsupportedError
from fencelock_lab.campaigns.dialects import DIALECTS
from fencelock_lab.campaigns.settings import OWN_GUARD, CampaignSettings
from fencelock_lab.campaigns.target import GuardTarget, Target

TARGETS = dict.fromkeys(DIALECTS, "table_target:TableTarget") | {
    "dynamodb": "dynamodb_target:DynamoTarget",
    "etcd": "etcd_target:EtcdTarget",
    "file": "document_target:FilesTarget",
    "redis": "document_target:RedisTarget",
    "rediss": "document_target:RedisTarget",
    "s3": "document_target:DocumentTarget",
    "zookeeper": "zookeeper_target:ZooKeeperTarget",
}


def make_target(settings: CampaignSettings, number: int) -> Target:
    """Return the resources of one lock; a negative control has a broken guard, or breaks what protects them.

    UnsupportedError if a campaign cannot write to the guard's store, ConfigError if a user's own cannot be had.
    """
    if settings.is_service:
        from fencelock_lab.campaigns.http_target import HTTPTarget

        return HTTPTarget(settings, number)
    if settings.has_texts:
        from fencelock_lab.campaigns.text_target import TextTarget, load_guard

        return TextTarget(settings, number, load_guard(settings.guard))
    if settings.control is None:
        return _guard_target(settings, number)
    from fencelock_lab.campaigns.controls import DOCUMENT_CONTROLS, MISUSES
    from fencelock_lab.campaigns.file_guards import FILE_GUARDS

    guards: dict[str, type[GuardTarget]] = {**FILE_GUARDS}
    if (scheme := _scheme(settings)) in DOCUMENT_CONTROLS:
        from fencelock_lab.campaigns.document_guards import DOCUMENT_GUARDS

        guards = {**DOCUMENT_GUARDS[scheme]}
    if settings.control in guards:
        return guards[settings.control](settings, number)
    target = _guard_target(settings, number)
    if settings.control in MISUSES:
        target.misuse = MISUSES[settings.control](settings, target)
    return target


def _guard_target(settings: CampaignSettings, number: int) -> GuardTarget:
    settings.guard_of(number)  # Raises first what is wrong with the URL, or that a client is missing.
    scheme = _scheme(settings)
    if scheme not in TARGETS:
        known = ", ".join(f"{one}://" for one in sorted(TARGETS))
        message = (
            f"a campaign knows how to write to a guard at {known}, and not at {scheme}://. Give it an object of your "
            f"own with `read` and `write`, --guard {OWN_GUARD}MODULE:NAME, or put a service in front of it, --guard "
            f"https://HOST/PATH/ (docs/how-to/verify-a-setup.md)"
        )
        raise UnsupportedError(message)
    module, _, name = TARGETS[scheme].partition(":")
    kind: type[GuardTarget] = getattr(import_module(f"{__package__}.{module}"), name)
    return kind(settings, number)


def _scheme(settings: CampaignSettings) -> str:
    return settings.guard.partition("://")[0].lower()
