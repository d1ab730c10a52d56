"""Litestar: the ASGI middleware, and an exception handler, since Litestar answers 500 to what a handler raises.

Promise: a guard's error in a handler becomes the same problem as elsewhere. Never: Litestar imported here.
"""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from fencelock._api.base_guard import BaseGuard
from fencelock.errors import FencelockError
from fencelock.http.asgi import ASGIApp, FencingMiddleware
from fencelock.http.service import Required, needs_token

AppConfig = TypeVar("AppConfig")


def init_litestar(
    *, lock: str | None = None, required: Required = needs_token, guards: Iterable[BaseGuard] = ()
) -> Callable[[AppConfig], AppConfig]:
    """Return what fences a Litestar application: `Litestar(…, on_app_init=[init_litestar(lock=…)])`.

    The arguments are those of `FencingMiddleware`.
    """
    known = tuple(guards)

    def fenced(app: ASGIApp) -> FencingMiddleware:
        return FencingMiddleware(app, lock=lock, required=required, guards=known)

    def on_app_init(config: AppConfig) -> AppConfig:
        given: Any = config
        given.middleware = [*given.middleware, fenced]
        given.exception_handlers = {
            **given.exception_handlers,
            FencelockError: _raise_again,
            ExceptionGroup: _raise_again,
        }
        return config

    return on_app_init


def _raise_again(request: object, error: Exception) -> NoReturn:  # noqa: ARG001 - as Litestar calls it.
    """Have Litestar raise the error through its middleware, which answers it."""
    raise error
