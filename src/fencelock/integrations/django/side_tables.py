"""The tables beside a protected model that stay open to every writer, because no model of theirs requests protection.

Promise: looks at the models only. A table that requests protection, of whichever resource, is none of them.
Never: a table named twice for the same reason.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fencelock.integrations.django.requests import ProtectionRequest, request_of

RELATION, INHERITANCE, REFERENCE = "fencelock.W003", "fencelock.W004", "fencelock.W005"


@dataclass(frozen=True, slots=True)
class SideTable:
    """A table that stays open: the reason's check id, its model, why it matters, and what the protected model asks."""

    id: str
    model: Any
    why: str
    asked: ProtectionRequest


def side_tables(models: Iterable[Any]) -> list[SideTable]:
    """Return the unfenced tables beside the protected ones of these models, automatic ones included."""
    tables = [model for model in models if not model._meta.proxy]  # noqa: SLF001 - Django's documented name.
    through = {model for table in tables for model in _explicit_through(table)}
    found: dict[tuple[str, Any], SideTable] = {}
    for table in tables:
        for side in (*_open_parents(table), *_open_references(table, through)):
            found.setdefault((side.id, side.model), side)
    return list(found.values())


def _explicit_through(model: Any) -> Iterator[Any]:
    for field in model._meta.local_many_to_many:  # noqa: SLF001
        if not field.remote_field.through._meta.auto_created:  # noqa: SLF001
            yield field.remote_field.through


def _open_parents(model: Any) -> Iterator[SideTable]:
    """Yield the parents of a protected model: they hold the inherited fields."""
    if (asked := request_of(model)) is not None:
        for parent in model._meta.all_parents:  # noqa: SLF001
            if request_of(parent) is None:
                yield SideTable(INHERITANCE, parent, f"holds the inherited fields of {_name(model)}", asked)


def _open_references(model: Any, through: set[Any]) -> Iterator[SideTable]:
    """Yield this unprotected model once for each protected one that its rows belong to."""
    if request_of(model) is not None:
        return
    for field in model._meta.local_concrete_fields:  # noqa: SLF001
        target = field.remote_field.model if field.is_relation else None
        asked = request_of(target) if isinstance(target, type) else None  # A str names a model that is missing.
        if asked is None:
            continue
        if model._meta.auto_created:  # noqa: SLF001
            owner = model._meta.auto_created  # noqa: SLF001
            why = f"is a many-to-many table of {_name(owner)}, which is not protected, with {_name(target)}"
            yield SideTable(RELATION, model, why, asked)
        elif field in model._meta.parents.values():  # noqa: SLF001
            yield SideTable(INHERITANCE, model, f"holds the fields that {_name(model)} adds to {_name(target)}", asked)
        elif model in through:
            yield SideTable(RELATION, model, f"is an explicit through table of {_name(target)}", asked)
        else:
            yield SideTable(REFERENCE, model, f"refers to {_name(target)} by {_name(model)}.{field.name}", asked)


def _name(model: Any) -> str:
    return str(model._meta.object_name)  # noqa: SLF001
