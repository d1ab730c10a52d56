"""Models that request protection, and the protection that their databases have.

Promise: a model's own table, and the tables that Django creates for its many-to-many fields, belong to the resource;
the tables of its parents and children do not, unless they request it too.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from django.apps import apps
from django.db import Error, connections, router

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock.errors import ConfigError, SchemaError, SourceUnavailableError
from fencelock.integrations.django.reads import watch_reads
from fencelock.integrations.django.requests import ProtectionRequest, request_of, set_request
from fencelock.integrations.django.settings import source
from fencelock.integrations.django.urls import is_in_memory, name_at_guard, name_for_guard, url_of
from fencelock.model import Mark, Protection, check_lock_name, check_resource_name
from fencelock.protocol.guard_requests import ENFORCE

ModelType = TypeVar("ModelType", bound=type)


def protected(*, resource: str, lock: str) -> Callable[[ModelType], ModelType]:
    """Class decorator: a write to the model's table must present the newest sealed token of the lock. A
    `ProtectTable` in a migration, or `manage.py fencelock_protect`, installs the protection. Models of one resource
    have one lock. ConfigError if a name is outside its contract.
    """
    asked = ProtectionRequest(check_resource_name(resource), check_lock_name(lock))

    def ask(model: Any) -> Any:
        if model._meta.abstract or model._meta.proxy:  # noqa: SLF001 - Django's documented name.
            raise ConfigError(f"{model.__name__} has no table of its own: put @protected on the model that has")
        set_request(model, asked)
        watch_reads(model)
        return model

    return ask


@dataclass(frozen=True, slots=True)
class Table:
    """A table that requests protection, and the protection that its database has for it."""

    model: Any
    name: str
    name_there: str | None
    asked: ProtectionRequest
    found: Protection | None
    bound_to: str | None

    @property
    def exists(self) -> bool:
        """True once a migration has created the table."""
        return self.name_there is not None

    def problem(self, mode: str) -> str | None:
        """Return what is missing for this mode; None if the protection is installed."""
        if not self.exists:
            return "does not exist yet: run manage.py migrate"
        if self.found is None:
            return "is not protected: any program can write it"
        if self.found.resource != self.asked.resource:
            return f"belongs to resource {self.found.resource!r} there, and asks for {self.asked.resource!r}"
        if self.bound_to != self.asked.lock:
            return f"is bound to lock {self.bound_to!r} there, and asks for {self.asked.lock!r}"
        if self.found.mode != mode:
            return f"is in {self.found.mode} mode"
        return None


def tables_of(alias: str) -> list[Table]:
    """Return the tables of a database that request protection, with its current state. SourceUnavailableError if Django
    cannot read it. None of a database in memory, which no other process can write.
    """
    if is_in_memory(connections[alias]):
        return []
    wanted = [(model, asked, model._meta.db_table) for model, asked in _wanted(alias)]  # noqa: SLF001
    names = _names_there(alias, [name for _, _, name in wanted])
    url = url_of(alias) if wanted else ""
    # Before the first migration the database may not exist.
    marks, protections = _seen(url) if any(names.values()) else ({}, {})
    tables = []
    for model, asked, name in wanted:
        mark = marks.get(asked.resource)
        found = protections.get(names[name] or "")
        tables.append(Table(model, name, names[name], asked, found, mark.lock if mark else None))
    return tables


def has_requests(alias: str) -> bool:
    """Return whether a model of this database requests protection."""
    return any(True for _ in _wanted(alias))


def guards_bound_to(alias: str, lock: str) -> list[fencelock.Guard]:
    """Return a guard for each requested resource of the database that is protected there under this lock."""
    resources = {table.asked.resource for table in tables_of(alias) if table.found and table.bound_to == lock}
    return [fencelock.guard(url_of(alias), resource=resource, lock=lock) for resource in sorted(resources)]


def protect_tables(alias: str, mode: str, tables: Iterable[Table]) -> Iterator[tuple[fencelock.Guard, list[Table]]]:
    """Protect these tables as they request it; yield each resource's guard and its tables when it is done."""
    together: dict[ProtectionRequest, list[Table]] = {}
    for table in tables:
        together.setdefault(table.asked, []).append(table)
    for asked, those in together.items():
        guard = fencelock.guard(url_of(alias), resource=asked.resource, lock=asked.lock)
        names = [name_for_guard(connections[alias], table.name) for table in those]
        is_switch = mode == ENFORCE and any(table.found is not None for table in those)
        guard.protect(*names, mode=mode, source=source() if is_switch else None)
        yield guard, those


def unprotect_all(alias: str, reason: str) -> tuple[Protection, ...]:
    """Unprotect every protected table of the database; return what it had."""
    url = url_of(alias)
    marks, protections = _seen(url)
    for resource in dict.fromkeys(one.resource for one in protections.values()):
        fencelock.guard(url, resource=resource, lock=marks[resource].lock).unprotect(reason=reason)
    return tuple(protections.values())


def _names_there(alias: str, names: list[str]) -> dict[str, str | None]:
    try:
        return {name: name_at_guard(connections[alias], name) for name in names}
    except Error as error:
        first = str(error).partition("\n")[0] or type(error).__name__
        raise SourceUnavailableError(f"Django cannot read database {alias!r} ({first})") from error


def _wanted(alias: str) -> Iterator[tuple[Any, ProtectionRequest]]:
    locks: dict[str, str] = {}
    for model in apps.get_models(include_auto_created=True):
        asked = request_of(model)
        if asked is None or model._meta.proxy or not router.allow_migrate_model(alias, model):  # noqa: SLF001
            continue
        if locks.setdefault(asked.resource, asked.lock) != asked.lock:
            raise ConfigError(
                f"resource {asked.resource!r} is asked for with lock {locks[asked.resource]!r} and with "
                f"{asked.lock!r}: one resource has one lock"
            )
        yield model, asked


def _seen(url: str) -> tuple[dict[str, Mark], dict[str, Protection]]:
    try:
        seen = inspect_resources(url)
    except SchemaError:
        # Nothing was protected there yet, or by another version; `protect` raises the error for that.
        return {}, {}
    return {mark.resource: mark for mark in seen.marks}, {one.table: one for one in seen.protections}
