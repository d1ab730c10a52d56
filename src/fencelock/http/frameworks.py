"""Frameworks that answer an error of a handler themselves, so that the middleware around them never sees it.

Promise: where a framework would turn a guard's error into a 500, the middleware refuses to start, and says what to
write instead. Never: a framework imported here.
"""

from collections.abc import Iterable, Iterator
from inspect import iscoroutinefunction
from typing import Any

from fencelock.errors import ConfigError, FencelockError

MAX_LAYERS = 64
"""Layers of middleware around an application that are looked through for its framework."""
_LINKS = ("app", "application", "wsgi_app", "__self__", "__wrapped__")


def check_raises(app: object) -> None:
    """Raise ConfigError if a framework inside of the middleware would answer a guard's errors itself."""
    for layer in _layers(app):
        homes = {cls.__module__.partition(".")[0] for cls in type(layer).__mro__}
        if "django" in homes:
            raise _swallowed("Django", 'put "fencelock.http.DjangoFencingMiddleware" into MIDDLEWARE')
        if "flask" in homes and FencelockError not in _flask_handlers(layer):
            raise _swallowed("Flask", "call fencelock.http.init_flask(app, …) instead of wrapping app.wsgi_app")
        if "litestar" in homes:
            check_litestar(layer)


def check_wsgi(app: object) -> None:
    """Raise ConfigError if the application is for ASGI, or its framework would answer a guard's errors itself."""
    check_raises(app)
    if iscoroutinefunction(app) or iscoroutinefunction(type(app).__call__):
        raise ConfigError(
            f"{type(app).__name__} is an application for ASGI, and this fences those for WSGI: call "
            f"app.add_middleware(fencelock.http.FencingMiddleware, …), or fencelock.http.FencingMiddleware(app, …)"
        )


def check_flask(app: object) -> None:
    """Raise ConfigError unless this is a Flask application."""
    if hasattr(app, "register_error_handler") and hasattr(app, "wsgi_app"):
        return
    check_wsgi(app)
    raise ConfigError(
        f"init_flask() takes a Flask application, not {type(app).__name__}: another one for WSGI is fenced by "
        f"fencelock.http.WSGIFencingMiddleware(app, …)"
    )


def _flask_handlers(app: object) -> Iterable[object]:
    handlers: dict[Any, dict[Any, dict[type, object]]] = getattr(app, "error_handler_spec", {})
    return handlers.get(None, {}).get(None, {})


def check_litestar(app: object) -> None:
    """Raise ConfigError for a Litestar application that answers a guard's errors itself."""
    handlers = getattr(app, "exception_handlers", None)
    if handlers is not None and FencelockError not in handlers:
        raise _swallowed("Litestar", "pass on_app_init=[fencelock.http.init_litestar(…)] to it, and no middleware")


def _swallowed(framework: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"{framework} answers 500 to an error of a handler before this middleware sees it, so that no client would "
        f"learn that its token is stale: {remedy}"
    )


def _layers(app: object) -> Iterator[object]:
    """Follow an application through the layers of middleware around it."""
    seen: list[object] = []
    waiting = [app]
    while waiting and len(seen) < MAX_LAYERS:
        layer = waiting.pop()
        if layer is None or any(layer is other for other in seen):
            continue
        seen.append(layer)
        yield layer
        waiting.extend(getattr(layer, link, None) for link in _LINKS)
