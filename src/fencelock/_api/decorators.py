"""Locks as decorators: each call of the function acquires the lock, and releases it at the end.

Promise: a call is `with lock:` around the body, and `guarded` a guarded transaction inside that, which is committed
before the caller gets the result. Threads and tasks may call the function at the same time. Never: a function whose
body runs after its call has returned (a generator, or a coroutine under a sync lock), since the lock would be free by
then.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from fencelock.errors import ConfigError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from fencelock._api.aio_lease import AsyncLease
    from fencelock._api.lease import Lease

    class _Handle(AbstractContextManager[Lease, None]):
        """A sync handle, as its mixin sees it."""

    class _AsyncHandle(AbstractAsyncContextManager[AsyncLease, None]):
        """An async handle, as its mixin sees it."""
else:
    _Handle = _AsyncHandle = object

P = ParamSpec("P")
R = TypeVar("R")


class _Guard(Protocol):
    """What `guarded` needs of a Guard, whose module imports that of the locks."""

    def transaction(self, lease: "Lease") -> "AbstractContextManager[Any]": ...


class _AsyncGuard(Protocol):
    """What `guarded` needs of an AsyncGuard."""

    def transaction(self, lease: "AsyncLease") -> "AbstractAsyncContextManager[Any]": ...


class Decorators(_Handle):
    """The ways to decorate a function with a lock."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function that runs while the lock is held: `@source.lock("import")`.

        A call raises AcquireTimeoutError if the handle's timeout has passed. ConfigError for a generator or an async
        function.
        """
        check_plain(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return call

    def leased(self, function: Callable[Concatenate["Lease", P], R]) -> Callable[P, R]:
        """Decorate a function that gets the lease as its first argument: `@source.lock("import").leased`."""
        check_plain(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self as lease:
                return function(lease, *args, **kwargs)

        return call

    def guarded(self, guard: "_Guard") -> Callable[[Callable[Concatenate[Any, P], R]], Callable[P, R]]:
        """Decorate a function that gets the connection of a guarded transaction as its first argument.

        `@source.lock("import").guarded(guard)`. The transaction is committed before the caller gets the result, and
        rolled back if the function raises.
        """

        def decorate(function: Callable[Concatenate[Any, P], R]) -> Callable[P, R]:
            check_plain(function)

            @wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                with self as lease, guard.transaction(lease) as connection:
                    return function(connection, *args, **kwargs)

            return call

        return decorate


class AsyncDecorators(_AsyncHandle):
    """The ways to decorate an async function with a lock."""

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate an async function that runs while the lock is held; errors as `Lock.__call__`."""
        _check_async(function)

        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await function(*args, **kwargs)

        return call

    def leased(
        self, function: Callable[Concatenate["AsyncLease", P], Awaitable[R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate an async function that gets the lease as its first argument."""
        _check_async(function)

        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self as lease:
                return await function(lease, *args, **kwargs)

        return call

    def guarded(
        self, guard: "_AsyncGuard"
    ) -> Callable[[Callable[Concatenate[Any, P], Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate an async function that gets the connection of a guarded transaction as its first argument.

        As `Lock.guarded`, with a guard of `fencelock.aio`.
        """

        def decorate(function: Callable[Concatenate[Any, P], Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            _check_async(function)

            @wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self as lease, guard.transaction(lease) as connection:
                    return await function(connection, *args, **kwargs)

            return call

        return decorate


def check_plain(function: object) -> None:
    """Raise ConfigError for what a sync lock cannot decorate: its body would run after the call has returned."""
    if not callable(function):
        raise ConfigError(f"a lock decorates a function, not {function!r}")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{_named(function)} is async, and this lock is not: take a lock of fencelock.aio")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"{_named(function)} is a generator, whose body runs after the call has returned: write `with lock:` in it"
        )


def _check_async(function: object) -> None:
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"a lock of fencelock.aio decorates an async function, and {_named(function)} is none")


def _named(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
