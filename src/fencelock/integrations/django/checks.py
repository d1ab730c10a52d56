"""System checks for Django: the setting is valid, the models that request protection have it, and so do those beside.

Promise: a database is inspected only if Django asks for it (`manage.py check --database default`, `migrate`), and never
changed. Missing protection is a warning, because the first `migrate` of a new database must be able to run.
"""

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.core import checks

from fencelock.errors import ConfigError, FencelockError
from fencelock.integrations.django.protecting import Table, tables_of
from fencelock.integrations.django.rehearsing import REHEARSALS
from fencelock.integrations.django.settings import read
from fencelock.integrations.django.side_tables import SideTable, side_tables
from fencelock.protocol.guard_requests import ENFORCE
from fencelock.stores.registry import source_store


def register_checks() -> None:
    """Register these checks with Django."""
    checks.register(check_setting)
    checks.register(check_side_tables, checks.Tags.models)
    checks.register(check_protection, checks.Tags.database)


def check_setting(**_: Any) -> list[checks.CheckMessage]:
    """fencelock.E001: the setting FENCELOCK cannot be read, or its source cannot issue tokens."""
    try:
        source = read().source
        if source is not None:
            source_store(source)
    except FencelockError as error:
        return [checks.Error(str(error), id="fencelock.E001")]
    return []


def check_side_tables(*, app_configs: Iterable[Any] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """fencelock.W003 to W005: a table beside a protected model stays open to every writer: a many-to-many table (W003),
    one of an inherited model (W004), one with a foreign key to it (W005).
    """
    labels = None if app_configs is None else {config.label for config in app_configs}
    found = side_tables(apps.get_models(include_auto_created=True))
    return [_side_warning(side) for side in found if labels is None or side.model._meta.app_label in labels]  # noqa: SLF001


def _side_warning(side: SideTable) -> checks.CheckMessage:
    asked = side.asked
    return checks.Warning(
        f"table {side.model._meta.db_table!r} {side.why}, and any program can write it",  # noqa: SLF001
        hint=f"Put @protected(resource={asked.resource!r}, lock={asked.lock!r}) on its model, if only the holder of "
        f"that lock may write it; else add {side.id!r} to SILENCED_SYSTEM_CHECKS",
        obj=side.model._meta.auto_created or side.model,  # noqa: SLF001
        id=side.id,
    )


def check_protection(*, databases: Iterable[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """fencelock.W001: a requested protection is missing; W002: a database cannot be inspected; E002: a database with
    protected models cannot have a guard, or the models contradict each other. Tests unprotect their databases.
    """
    if REHEARSALS.is_on:
        return []
    return [message for alias in databases or () for message in _messages(alias)]


def _messages(alias: str) -> list[checks.CheckMessage]:
    try:
        tables = tables_of(alias)
    except ConfigError as error:
        return [checks.Error(str(error), id="fencelock.E002")]
    except FencelockError as error:
        return [checks.Warning(f"database {alias!r}: {error}", id="fencelock.W002")]
    return [_warning(alias, table, problem) for table in tables if table.exists and (problem := table.problem(ENFORCE))]


def _warning(alias: str, table: Table, problem: str) -> checks.CheckMessage:
    return checks.Warning(
        f"table {table.name!r} in database {alias!r} {problem}",
        hint=f"Run manage.py fencelock_protect --database {alias}",
        obj=table.model,
        id="fencelock.W001",
    )
