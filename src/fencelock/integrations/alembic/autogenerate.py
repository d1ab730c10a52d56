"""Autogenerate: it sees none of fencelock's own tables, and compares what tables ask for with what is protected.

A table asks in its `info`: `{"fencelock": {"resource": "accounts", "lock": "book-keeping"}}`, or None to give a
protection up. Promise: a protected table that asks for nothing stays as it is. A migration that changes protected
tables holds the marks first (`op.fencelock_hold`), upgrading and downgrading, where DDL is transactional.
"""

from collections.abc import Iterator
from typing import Any

from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations import ops
from alembic.util import CommandError, DispatchPriority
from sqlalchemy import Table

from fencelock.errors import ConfigError
from fencelock.integrations.alembic.operations import (
    HoldResourceOp,
    ProtectTableOp,
    TableOp,
    UnprotectTableOp,
    store_of,
)
from fencelock.integrations.alembic.protections import BoundTable, Protections, TableKey, is_ours, read_protections
from fencelock.model import check_lock_name, check_resource_name

_INFO = "fencelock"


@comparators.dispatch_for("autogenerate", priority=DispatchPriority.FIRST)
def _hide_own_tables(context: AutogenContext, _: ops.UpgradeOps) -> None:
    """Add a filter to the user's own `include_name`."""
    assert context.dialect is not None
    dialect = context.dialect.name

    def is_users(name: str | None, kind: str, parents: Any) -> bool:
        if kind == "schema":
            return not is_ours(dialect, name, "")
        return kind != "table" or not is_ours(dialect, parents.get("schema_name"), name or "")

    # There is no public way to add one for a user who passes nothing.
    context._name_filters.append(is_users)  # noqa: SLF001


@comparators.dispatch_for("autogenerate", priority=DispatchPriority.LAST)
def _compare(context: AutogenContext, upgrade: ops.UpgradeOps) -> None:
    """Put the operations around those that Alembic has found; before all of them, hold the marks."""
    assert context.connection is not None
    found = read_protections(context.connection)
    try:
        requests = list(_requests(context))
        for key, asked in requests:
            _check_lock(key, asked, found)
    except ConfigError as error:
        raise CommandError(str(error)) from error  # Alembic shows no traceback of these.
    protect, unprotect = [], []
    for key, asked in requests:
        now = found.tables.get(key)
        if now is not None and (asked is None or asked.resource != now.resource):
            unprotect.append(_operation(UnprotectTableOp, key, now))
        if asked is not None and (now is None or asked.resource != now.resource):
            protect.append(_operation(ProtectTableOp, key, asked))
    for key in [_key_of(op) for op in upgrade.ops if isinstance(op, ops.DropTableOp)]:
        if key in found.tables:
            unprotect.append(_operation(UnprotectTableOp, key, found.tables[key]))
    upgrade.ops[:] = [*unprotect, *upgrade.ops, *protect]
    if (held := _touched(upgrade, found)) and store_of(context.connection).has_transactional_ddl:
        moved = {_key_of(op) for op in unprotect}
        # A table that moves belongs to its new resource when the downgrade begins.
        held_there = held | {op.resource for op in protect if _key_of(op) in moved}
        before = [HoldResourceOp(resource) for resource in sorted(held)]
        after = [HoldResourceOp(resource, is_for_reverse=True) for resource in sorted(held_there, reverse=True)]
        upgrade.ops[:] = [*before, *upgrade.ops, *after]


def _requests(context: AutogenContext) -> Iterator[tuple[TableKey, BoundTable | None]]:
    """Yield each table that says something about its protection."""
    assert context.connection is not None
    default = context.connection.dialect.default_schema_name
    for table in context.sorted_tables:
        if _INFO in table.info and context.run_object_filters(table, table.name, "table", False, None):
            schema = None if table.schema == default else table.schema
            yield (schema, str(table.name)), _request_of(table)


def _request_of(table: Table) -> BoundTable | None:
    asked = table.info[_INFO]
    if asked is None:
        return None
    if not isinstance(asked, dict) or asked.keys() != {"resource", "lock"}:
        raise ConfigError(
            f'table {table.name!r}: info["{_INFO}"] is {{"resource": …, "lock": …}}, or None to stop protecting it, '
            f"not {asked!r}"
        )
    return BoundTable(check_resource_name(asked["resource"]), check_lock_name(asked["lock"]))


def _check_lock(key: TableKey, asked: BoundTable | None, found: Protections) -> None:
    """Raise ConfigError if the resource is bound to another lock: no operation changes that."""
    bound = None if asked is None else found.locks.get(asked.resource)
    if asked is not None and bound not in (None, asked.lock):
        raise ConfigError(
            f"table {key[1]!r} asks for resource {asked.resource!r} with lock {asked.lock!r}, and the database has it "
            f"bound to lock {bound!r}: name that lock, or run `fencelock rebind` on this database, and on each other "
            f"one"
        )


def _operation(kind: type[TableOp], key: TableKey, bound: BoundTable) -> TableOp:
    schema, table = key
    return kind(table, bound.resource, bound.lock, schema)


def _key_of(op: Any) -> TableKey:
    return op.schema, str(op.table_name)


def _touched(upgrade: ops.UpgradeOps, found: Protections) -> set[str]:
    """Return the existing resources whose marks or tables change."""
    touched = {op.resource for op in upgrade.ops if isinstance(op, TableOp)}
    keys = [_key_of(op) for op in upgrade.ops if hasattr(op, "table_name")]
    touched |= {found.tables[key].resource for key in keys if key in found.tables}
    return touched & found.locks.keys()


@renderers.dispatch_for(HoldResourceOp)
def _render_hold(context: AutogenContext, op: HoldResourceOp) -> list[str]:
    return [] if op.is_for_reverse else [f"{_prefix(context)}fencelock_hold({op.resource!r})"]


@renderers.dispatch_for(TableOp)
def _render_table(context: AutogenContext, op: TableOp) -> str:
    schema = "" if op.schema is None else f", schema={str(op.schema)!r}"
    return f"{_prefix(context)}{op.name}({op.table_name!r}, resource={op.resource!r}, lock={op.lock!r}{schema})"


def _prefix(context: AutogenContext) -> str:
    return str(context.opts["alembic_module_prefix"] or "")
