"""Celery: a task that takes a lock of its own for each delivery, and begins again later while another has it.

Promise: the handler runs under a lease of this delivery alone. A delivery that finds the lock held, loses its lease, or
cannot reach a store is sent again before it is acknowledged, with the task's retries as they were. A key that was done
before is a success. Never: a message dropped because of a lock; a stale message of a producer sent again.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from fencelock import Lease, Source
from fencelock._api.decorators import check_plain
from fencelock._api.durations import Duration, in_seconds, is_number
from fencelock._api.lock_options import DEFAULT_TTL_S
from fencelock._api.repeatable import is_repeatable, may_campaign_again
from fencelock.errors import AcquireTimeoutError, AlreadyDoneError, ConfigError, StaleTokenError

__all__ = ["one_at_a_time"]

RETRY_AFTER_S = 5.0
_GIVEN = 2
"""The arguments that a handler gets before its task's: the task and the lease."""
P = ParamSpec("P")
R = TypeVar("R")


def one_at_a_time(
    source: Source, key: Callable[P, str], *, ttl: Duration = DEFAULT_TTL_S, retry_after: Duration = RETRY_AFTER_S
) -> Callable[[Callable[Concatenate[Any, Lease, P], R]], Callable[Concatenate[Any, P], R | str]]:
    """Decorate the function below `@app.task(bind=True, acks_late=True)`: it gets the task, a lease, and its arguments.

    `key` returns the lock's name for the task's arguments. While the lock is held, and after a loss of the lease, the
    task is sent again `retry_after` seconds later, as often as needed. AlreadyDoneError out of the handler is a success
    with the result that was kept. ConfigError, in the worker, for a task that is not bound, or that is acknowledged
    before it is done.
    """
    pause_s = in_seconds(retry_after)
    if not is_number(pause_s) or not pause_s > 0:
        raise ConfigError(f"retry_after is the seconds until a task is sent again, more than 0; not {retry_after!r}")

    def decorate(handler: Callable[Concatenate[Any, Lease, P], R]) -> Callable[Concatenate[Any, P], R | str]:
        signature = _signature_of(handler)

        @wraps(handler)
        def run(task: Any, /, *args: P.args, **kwargs: P.kwargs) -> R | str:
            _check(task)
            token = None
            try:
                with source.lock(key(*args, **kwargs), ttl=ttl, timeout=0) as lease:
                    token = lease.token
                    return handler(task, lease, *args, **kwargs)
            except AlreadyDoneError as error:
                return error.result
            except Exception as error:
                if not _may_begin_again(error, token):
                    raise
                _begin_again(task, error, pause_s)

        run.__signature__ = signature  # type: ignore[attr-defined]
        return run

    return decorate


def _signature_of(handler: Callable[..., object]) -> inspect.Signature:
    """Return the signature with which Celery compares a call's arguments: the caller has no lease to pass."""
    if hasattr(handler, "apply_async"):
        raise ConfigError("one_at_a_time decorates a function, not a task: write it below @app.task(…)")
    check_plain(handler)
    signature = inspect.signature(handler)
    own = list(signature.parameters.values())
    if len(own) < _GIVEN:
        raise ConfigError(f"{handler!r} gets a task and a lease first, and then the arguments of the task")
    return signature.replace(parameters=[own[0], *own[_GIVEN:]])


def _check(task: object) -> None:
    if not hasattr(task, "signature_from_request"):
        raise ConfigError("one_at_a_time needs the task as its first argument: write @app.task(bind=True, …) above it")
    if not getattr(task, "acks_late", False):
        raise ConfigError(
            f"task {task!r} is acknowledged before it is done, so that the broker would forget it if its worker died: "
            f"write @app.task(bind=True, acks_late=True, …)"
        )


def _may_begin_again(error: BaseException, token: int | None) -> bool:
    """Return whether another delivery may succeed; `token` None: this one never had a lease. A group's, if each may."""
    if isinstance(error, BaseExceptionGroup):
        return all(_may_begin_again(each, token) for each in error.exceptions)
    if isinstance(error, StaleTokenError):
        # Another token than this lease's is a producer's, and stays stale.
        return error.token == token
    if isinstance(error, AcquireTimeoutError):
        return True
    return may_campaign_again(error) if token is None else is_repeatable(error)


def _begin_again(task: Any, reason: Exception, pause_s: float) -> NoReturn:
    """Send the task again, and end this delivery; the retries that the task's own code counts stay as they are."""
    from celery.exceptions import Reject, Retry

    request = task.request
    if request.called_directly or request.is_eager:
        raise reason  # There is no broker to send it to.
    again = task.signature_from_request(countdown=pause_s, retries=request.retries)
    try:
        again.apply_async()
    except Exception as failure:
        raise Reject(failure, requeue=True) from reason
    raise Retry(exc=reason, when=pause_s, sig=again) from reason
