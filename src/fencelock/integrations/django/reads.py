"""Notices a save() that would undo an older holder's write, because its instance was read before the seal.

Promise: each instance of a protected model remembers when it was read, and each tenure when it sealed a resource. A
`save()` in a block raises GuardError if it would write values that were read before that. Reads after the seal pass,
inside a block or between two, and so do new instances, deferred fields and expressions (`F("balance") + 1`).
Limit: only `save()` is checked. `bulk_update` sends no signal, and Django creates no instance for `update()`. When a
resource was sealed by anything but a `fenced` block is not known here, so all instances pass then.
Never: a query of its own.
"""

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from django.db.models.signals import post_save, pre_save

from fencelock._flows.tenure import Scope, Tenure
from fencelock.errors import GuardError
from fencelock.integrations.django.requests import resources_of
from fencelock.integrations.django.settings import CHECK_READS, SETTING, read

Moment = tuple[str, int]
"""A process, and the nanoseconds of its monotonic clock. A pickled instance may come from another process, or from
before a reboot: its moments compare with nothing here, and count as old.
"""

_PROCESS = secrets.token_hex(8)
"""Drawn when the process begins; a forked child has its parent's, and its clock too."""
_READ = "fencelock_read"
_READ_FIELDS = "fencelock_read_fields"
_sealed_at: WeakKeyDictionary[Tenure, dict[tuple[str, str], int]] = WeakKeyDictionary()


class _BlocksOfThread(threading.local):
    def __init__(self) -> None:
        self.open: dict[str, dict[str, int]] = {}


_BLOCKS = _BlocksOfThread()


# --- what a tenure has sealed, and when -------------------------------------------------------------------------------
def seal_noting(scope: Scope, tenure: Tenure, seal: Callable[[], None]) -> Mapping[str, int]:
    """Call `seal`; return when the tenure sealed each resource, 0 if a guard did that before the first block."""
    sealed_before = {key for key in scope.keys if tenure.has_sealed(key)}
    seal()
    now = time.monotonic_ns()
    known = _sealed_at.setdefault(tenure, {})
    return {key[1]: known.setdefault(key, 0 if key in sealed_before else now) for key in scope.keys}


@contextmanager
def reads_checked(alias: str, sealed_at: Mapping[str, int]) -> Iterator[None]:
    """Check what this thread saves in the database `alias` from now on, until the end of its block."""
    try:
        _BLOCKS.open[alias] = dict(sealed_at)
        yield
    finally:
        _BLOCKS.open.pop(alias, None)


# --- when an instance was read ----------------------------------------------------------------------------------------
def watch_reads(model: Any) -> None:
    """Have the model, its proxies and its children note when an instance is read."""
    model.from_db = classmethod(_noting_from_db(model.from_db.__func__))
    model.refresh_from_db = _noting_refresh(model.refresh_from_db)


def _noting_from_db(from_db: Callable[..., Any]) -> Callable[..., Any]:
    def noting(cls: Any, *args: Any, **options: Any) -> Any:
        instance = from_db(cls, *args, **options)
        setattr(instance._state, _READ, (_PROCESS, time.monotonic_ns()))  # noqa: SLF001 - Django's documented name.
        return instance

    noting.__doc__ = from_db.__doc__
    return noting


def _noting_refresh(refresh: Callable[..., None]) -> Callable[..., None]:
    def refresh_from_db(self: Any, using: Any = None, fields: Any = None, *args: Any, **options: Any) -> None:
        names = None if fields is None else tuple(fields)
        # The moment before the query: what is written while it runs may be missing from its result.
        moment = (_PROCESS, time.monotonic_ns())
        refresh(self, using, names, *args, **options)
        if names is None:
            _note(self, moment)
        else:
            fields_read = vars(self._state).get(_READ_FIELDS, {})
            setattr(self._state, _READ_FIELDS, fields_read | dict.fromkeys(names, moment))

    refresh_from_db.__doc__ = refresh.__doc__
    return refresh_from_db


def _note(instance: Any, moment: Moment) -> None:
    setattr(instance._state, _READ, moment)  # noqa: SLF001 - Django's documented name.
    vars(instance._state).pop(_READ_FIELDS, None)  # noqa: SLF001


# --- the check --------------------------------------------------------------------------------------------------------
def connect_signals() -> None:
    """Check every save of this process."""
    pre_save.connect(_check_save)
    post_save.connect(_note_created)


def _note_created(*, instance: Any, created: bool, **_: Any) -> None:
    """A new instance was made by nobody else: what it holds is what its table holds now."""
    if created:
        _note(instance, (_PROCESS, time.monotonic_ns()))


def _check_save(
    *, sender: Any, instance: Any, using: str, raw: bool, update_fields: Collection[str] | None, **_: Any
) -> None:
    sealed = _BLOCKS.open.get(using)
    if sealed is None or raw or instance._state.adding:  # noqa: SLF001
        return
    for resource in resources_of(sender):
        since = sealed.get(resource, 0)
        if (old := _old_fields(instance, update_fields, since)) and read().checks_reads:
            raise GuardError(
                f"{type(instance).__name__} {instance.pk} was read before this lease sealed resource {resource!r}: an "
                f"older holder may have written its row since, and this save() would undo that ({', '.join(old)}). "
                f"Read it inside the block, or call refresh_from_db() there before you change it. "
                f"{SETTING}['{CHECK_READS}'] = False switches this check off"
            )


def _old_fields(instance: Any, update_fields: Collection[str] | None, since: int) -> list[str]:
    """Return the fields that a save would write with a value from before that moment."""
    state = vars(instance._state)  # noqa: SLF001
    whole = state.get(_READ)
    if whole is None or not _is_old(whole, since):
        return []
    fresh = {name for name, moment in state.get(_READ_FIELDS, {}).items() if not _is_old(moment, since)}
    return [
        field.attname
        for field in instance._meta.concrete_fields  # noqa: SLF001
        if not field.primary_key
        and field.attname in vars(instance)
        and (update_fields is None or not {field.name, field.attname}.isdisjoint(update_fields))
        and fresh.isdisjoint({field.name, field.attname})
        and not field.generated
        and not hasattr(vars(instance)[field.attname], "resolve_expression")
    ]


def _is_old(moment: Moment, since: int) -> bool:
    process, at = moment
    return at < since or (since > 0 and process != _PROCESS)
