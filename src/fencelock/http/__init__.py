"""Fencing across HTTP: middleware that brings a request's sequencer to its handler's guards, and clients that send one.

    app.add_middleware(fencelock.http.FencingMiddleware, lock="nightly-report")     # Starlette, FastAPI, any ASGI
    fencelock.http.init_flask(app, lock="nightly-report")

    with guard.transaction(fencelock.http.sequencer()) as connection:               # in the handler

    with fencelock.http.client(lease, httpx.Client(base_url="https://reports.example")) as api:     # in the holder
        api.put("/report", json=report)

Promise: importing this loads no framework, no client and no store; names are loaded when they are first used.
"""

from importlib import import_module

TYPE_CHECKING = False  # As type checkers know it: importing `typing` would cost more than all the rest.
if TYPE_CHECKING:
    from fencelock._remote.carried import CarriedSequencer
    from fencelock._remote.current import has_token, sequencer
    from fencelock.http.asgi import FencingMiddleware
    from fencelock.http.clients import client
    from fencelock.http.django import DjangoFencingMiddleware
    from fencelock.http.flask import init_flask
    from fencelock.http.litestar import init_litestar
    from fencelock.http.service import needs_token, once
    from fencelock.http.wsgi import WSGIFencingMiddleware

_HOMES = {
    "CarriedSequencer": "fencelock._remote.carried",
    "DjangoFencingMiddleware": "fencelock.http.django",
    "FencingMiddleware": "fencelock.http.asgi",
    "WSGIFencingMiddleware": "fencelock.http.wsgi",
    "client": "fencelock.http.clients",
    "has_token": "fencelock._remote.current",
    "init_flask": "fencelock.http.flask",
    "init_litestar": "fencelock.http.litestar",
    "needs_token": "fencelock.http.service",
    "once": "fencelock.http.service",
    "sequencer": "fencelock._remote.current",
}

__all__ = [
    "CarriedSequencer",
    "DjangoFencingMiddleware",
    "FencingMiddleware",
    "WSGIFencingMiddleware",
    "client",
    "has_token",
    "init_flask",
    "init_litestar",
    "needs_token",
    "once",
    "sequencer",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fencelock.http' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
