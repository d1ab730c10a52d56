"""Events: hooks with structured fields, and the standard logging under `fencelock`.

Promise: an event never carries a claim or a sequencer; an exception from a hook is logged and has no other effect;
without a hook and with logging off, an event costs one attribute look-up. Hooks run in the thread in which the event
happened, so they must not block: the keeper's events (renewed, lost) come from the keeper's threads.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields

from fencelock.errors import ConfigError

logger = logging.getLogger("fencelock")


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a lease or a resource. Times are seconds; fields that do not apply are None."""

    name: str
    lock: str
    token: int | None = None
    resource: str | None = None
    holder: str | None = None
    duration: float | None = None
    reason: str | None = None


Hook = Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks for events; give one to `connect(url, hooks=…)` and `guard(url, …, hooks=…)`.

    acquired: a lease was granted. waited: an acquire had to queue, `duration` says how long. renewed: the source
    confirmed the lease. lost: the lease expired or was lost, `reason` says why. released: the lease was released;
    `reason` is set if the source did not confirm that. Both say in `duration` for how long it was held. sealed: a
    resource's mark was raised. refused: a guard refused a token (with `reason`), or would have refused it in observe
    mode. retried: `source.lead` campaigns again after a failure, which `reason` tells, when `duration` has passed.
    guarded: a guarded transaction of the guard's own ended; `duration` is its length, and `reason` is None if it was
    committed, else "rolled back" or "failed".
    """

    on_acquired: Hook | None = None
    on_waited: Hook | None = None
    on_renewed: Hook | None = None
    on_lost: Hook | None = None
    on_released: Hook | None = None
    on_sealed: Hook | None = None
    on_refused: Hook | None = None
    on_retried: Hook | None = None
    on_guarded: Hook | None = None


NO_HOOKS = Hooks()
_LEVELS = {"lost": logging.WARNING, "refused": logging.WARNING, "retried": logging.WARNING}


def check_hooks(hooks: object) -> Hooks:
    """Return the hooks; ConfigError if the argument is something else."""
    if not isinstance(hooks, Hooks):
        raise ConfigError(f"hooks must be fencelock.Hooks(on_lost=…, …), not {type(hooks).__name__}")
    return hooks


def is_observed(hooks: Hooks, name: str) -> bool:
    """Return whether a hook or a log receives the event: creating an event costs more than a guard's check."""
    return hooks is not NO_HOOKS or logger.isEnabledFor(_LEVELS.get(name, logging.DEBUG))


def emit(hooks: Hooks, event: Event) -> None:
    """Log the event under `fencelock` and call its hook; an exception from the hook is logged, never passed on."""
    level = _LEVELS.get(event.name, logging.DEBUG)
    if logger.isEnabledFor(level):
        logger.log(level, "%s", describe(event), extra={"fencelock_event": event})
    hook: Hook | None = getattr(hooks, f"on_{event.name}")
    if hook is None:
        return
    try:
        hook(event)
    except Exception:
        logger.exception("the hook on_%s raised; fencelock goes on without it", event.name)


def describe(event: Event) -> str:
    """Return the event as one line of `name key=value …`, without the fields that do not apply."""
    shown = ((field.name, getattr(event, field.name)) for field in fields(event) if field.name != "name")
    return " ".join([event.name, *(f"{key}={value!r}" for key, value in shown if value is not None)])
