"""Check the arguments of guards, before anything is opened: names, tables, modes.

Promise: an argument outside its contract is ConfigError, which states the contract.
"""

from collections.abc import Iterable

from fencelock._api.credentials import Credential
from fencelock._flows.tenure import Scope
from fencelock.errors import ConfigError, GuardError, LeaseError, LeaseInheritedError, UnsupportedError
from fencelock.model import (
    SourceInfo,
    check_lock_name,
    check_name,
    check_resource_name,
)
from fencelock.protocol.guard_requests import ENFORCE, OBSERVE
from fencelock.protocol.source_requests import Keys
from fencelock.protocol.stores import GuardStore

MAX_RESOURCES = 64
"""Resources that one guard may seal at once."""
MAX_TABLE_NAME_BYTES = 1024
MAX_ROLE_BYTES = 512


def scope_at(
    store: GuardStore, resource: str | None, resources: Iterable[str] | None, lock: str, *, independent: bool
) -> Scope:
    """Return what a guard of this store watches over."""
    can = store.capabilities
    creates = can.first_seal_creates
    scope = scope_of(store.url, resource, resources, lock, independent=independent, first_seal_creates=creates)
    if len(scope.resources) > 1 and not can.spans_resources:
        raise ConfigError(
            f"{store.url} writes one resource in one step, so no guard has several there: make one resource of "
            f"{', '.join(map(repr, scope.resources))}; or, if nothing that is written to one depends on what was read "
            f"from another, open a guard with independent=True for each"
        )
    return scope


def scope_of(
    url: str,
    resource: str | None,
    resources: Iterable[str] | None,
    lock: str,
    *,
    independent: bool,
    first_seal_creates: bool = True,
) -> Scope:
    """Return what a guard at this URL watches over."""
    if (resource is None) == (resources is None):
        raise ConfigError("say either resource='name' or resources=['name', …]")
    if isinstance(resources, str):
        raise ConfigError(f"resources is a list of names; for one name say resource={resources!r}")
    if resources is not None and not isinstance(resources, Iterable):
        raise ConfigError(f"resources is a list of names, not {type(resources).__name__}")
    names = (resource,) if resource is not None else tuple(resources or ())
    if not 1 <= len(names) <= MAX_RESOURCES:
        raise ConfigError(f"a guard has 1 to {MAX_RESOURCES} resources, not {len(names)}")
    for name in names:
        check_resource_name(name)
    if len(set(names)) < len(names):
        raise ConfigError(f"resources names one resource twice: {list(names)!r}")
    return Scope(url, names, check_lock_name(lock), is_independent=independent, first_seal_creates=first_seal_creates)


def check_tables(tables: tuple[str, ...]) -> None:
    """Raise ConfigError unless each is a possible name of a table."""
    for table in tables:
        check_name(table, what="table name", limit_bytes=MAX_TABLE_NAME_BYTES)


def check_protect(store: GuardStore, scope: Scope, tables: tuple[str, ...], mode: str) -> None:
    """Raise ConfigError unless the mode exists and there are tables, where the store enforces; and UnsupportedError for
    what this store does not do.
    """
    if mode not in (ENFORCE, OBSERVE):
        raise ConfigError(f"mode is {ENFORCE!r} or {OBSERVE!r}, not {mode!r}")
    check_tables(tables)
    can = store.capabilities
    if can.enforced_by == "store":
        if not tables and can.first_seal_creates:
            raise ConfigError("protect needs the name of at least one table")
    elif tables or mode == OBSERVE or can.first_seal_creates:
        raise _no_triggers(store, scope)


def _no_triggers(store: GuardStore, scope: Scope) -> UnsupportedError:
    can = store.capabilities
    bound = f"resource {scope.resources[0]!r} to lock {scope.lock!r}"
    binds = f"The first seal binds {bound}" if can.first_seal_creates else f"protect() without a table binds {bound}"
    how = ", as `fencelock protect --print-policy` shows" if can.enforced_by == "policy" else ""
    return UnsupportedError(
        f"{store.url} has no triggers, so it cannot refuse or count a write by itself, and no table can be protected "
        f"there. {binds}. Use the store's own access control: give the right to write there only to the user whose "
        f"code writes inside `with guard.transaction(lease)`{how}"
    )


def check_keeps_open(store: GuardStore, native: object) -> None:
    """Raise GuardError unless a caller's own transaction can be used at the store."""
    if not store.capabilities.keeps_open:
        raise GuardError(
            f"{store.url} has no transaction that stays open, so nothing can be checked inside "
            f"{type(native).__name__}: write inside `with guard.transaction(lease) as txn:`, or call guard.seal(lease) "
            f"without a connection"
        )


def check_rebuilt(tables: tuple[str, ...]) -> None:
    """Raise ConfigError unless there are tables, each with a possible name."""
    if not tables:
        raise ConfigError("rebuilding needs the name of at least one table")
    check_tables(tables)


def check_info(info: object) -> SourceInfo:
    """Return the SourceInfo that a source gave; ConfigError if it is something else."""
    if not isinstance(info, SourceInfo):
        raise ConfigError("source must be a source, as fencelock.connect() returns, or its SourceInfo")
    return info


def check_roles(roles: tuple[str, ...], *, at_least: int = 1) -> tuple[str, ...]:
    """Return the roles if each can name one; ConfigError if not, or if there are too few."""
    for role in roles:
        check_name(role, what="role", limit_bytes=MAX_ROLE_BYTES)
    if len(roles) < at_least:
        raise ConfigError("say which role: grant('app'), by its name in the database")
    return roles


def check_keys(keys: object) -> Keys:
    """Return the keys that a source gave; ConfigError for something else."""
    if not isinstance(keys, Keys):
        raise ConfigError("install_keys takes a source, as fencelock.connect() returns, or what its keys() returned")
    return keys


def check_closable(credential: Credential) -> None:
    """Raise LeaseInheritedError for a parent's lease; one that is over may still be closed."""
    try:
        credential.check_valid()
    except LeaseInheritedError:
        raise
    except LeaseError:
        pass
