"""Check the arguments of guards, before anything is opened: names, tables, modes.

Promise: an argument outside its contract is ConfigError, which states the contract.
"""

from collections.abc import Iterable

from fencelock._api.credentials import Credential
from fencelock._flows.tenure import Scope
from fencelock.errors import ConfigError, LeaseError, LeaseInheritedError
from fencelock.model import (
    SourceInfo,
    check_lock_name,
    check_name,
    check_resource_name,
)
from fencelock.protocol.guard_requests import ENFORCE, OBSERVE
from fencelock.protocol.source_requests import Keys

MAX_RESOURCES = 64
"""Resources that one guard may seal at once."""
MAX_TABLE_NAME_BYTES = 1024
MAX_ROLE_BYTES = 512


def scope_of(url: str, resource: str | None, resources: Iterable[str] | None, lock: str, *, independent: bool) -> Scope:
    """Return what a guard watches over."""
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
    return Scope(url, names, check_lock_name(lock), is_independent=independent)


def check_tables(tables: tuple[str, ...]) -> None:
    """Raise ConfigError unless each is a possible name of a table."""
    for table in tables:
        check_name(table, what="table name", limit_bytes=MAX_TABLE_NAME_BYTES)


def check_protect(tables: tuple[str, ...], mode: str) -> None:
    """Raise ConfigError unless there are tables and the mode exists."""
    if mode not in (ENFORCE, OBSERVE):
        raise ConfigError(f"mode is {ENFORCE!r} or {OBSERVE!r}, not {mode!r}")
    if not tables:
        raise ConfigError("protect needs the name of at least one table")
    check_tables(tables)


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
