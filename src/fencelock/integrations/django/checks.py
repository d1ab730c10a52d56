"""Checks of Django's: the setting is one that can be read, and models that ask for protection have it.

Promise: databases are looked at only where Django says so (`manage.py check --database default`, `migrate`), and
nothing in them is changed. What is missing there is a warning: the first `migrate` of a new database has to run.
"""

from collections.abc import Iterable
from typing import Any

from django.core import checks

from fencelock.errors import ConfigError, FencelockError
from fencelock.integrations.django.protecting import Table, tables_of
from fencelock.integrations.django.settings import read
from fencelock.protocol.guard_requests import ENFORCE
from fencelock.stores.registry import source_store


def register_checks() -> None:
    """Have Django run these checks."""
    checks.register(check_setting)
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


def check_protection(*, databases: Iterable[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """fencelock.W001: a model asks for protection that is not in force; W002: a database cannot be asked; E002: a
    database that has protected models can have no guard, or the models contradict each other.
    """
    return [message for alias in databases or () for message in _messages(alias)]


def _messages(alias: str) -> list[checks.CheckMessage]:
    try:
        tables = tables_of(alias)
    except ConfigError as error:
        return [checks.Error(str(error), id="fencelock.E002")]
    except FencelockError as error:
        return [checks.Warning(f"database {alias!r}: {error}", id="fencelock.W002")]
    return [_warning(alias, table, said) for table in tables if table.exists and (said := table.problem(ENFORCE))]


def _warning(alias: str, table: Table, said: str) -> checks.CheckMessage:
    return checks.Warning(
        f"table {table.name!r} in database {alias!r} {said}",
        hint=f"Run manage.py fencelock_protect --database {alias}",
        obj=table.model,
        id="fencelock.W001",
    )
