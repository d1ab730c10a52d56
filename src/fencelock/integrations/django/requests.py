"""What a model declares by `@protected`: the resource of its table, and the lock whose holder may write it.

Promise: a request is stored on the model only, and concerns its own table and the tables that Django creates for its
many-to-many fields. Never: a request inherited by a child or a parent, which have tables of their own.
"""

from dataclasses import dataclass
from typing import Any

_ASKED = "_fencelock_asked"


@dataclass(frozen=True, slots=True)
class ProtectionRequest:
    """The resource and the lock that a model requests."""

    resource: str
    lock: str


def set_request(model: Any, asked: ProtectionRequest) -> None:
    """Have the model request protection for its own table."""
    setattr(model, _ASKED, asked)


def request_of(model: Any) -> ProtectionRequest | None:
    """Return what the model requests for its own table; None if it requests nothing."""
    owner = model._meta.auto_created or model._meta.concrete_model  # noqa: SLF001
    asked: ProtectionRequest | None = vars(owner).get(_ASKED)
    return asked


def resources_of(model: Any) -> set[str]:
    """Return the resources of all tables that a save of the model writes: its own, and those of its parents."""
    written = (model._meta.concrete_model, *model._meta.all_parents)  # noqa: SLF001
    return {asked.resource for one in written if (asked := request_of(one)) is not None}
