"""One service, a report in a guarded table, in every framework: the routes are the same, and so must the answers be."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import fencelock
import fencelock.http
from fencelock import Guard, GuardedTransaction
from fencelock.http import FencingMiddleware, WSGIFencingMiddleware, has_token, init_flask, init_litestar, once
from tests.http.wire import Service, over_asgi, over_wsgi
from tests.support.guards import LOCK, RESOURCE, url_of, value_in, write

METHODS = ["GET", "POST", "PUT"]
NOT_FOUND = 404


class Report:
    """What the routes do. `GET /report` reads, `PUT /report/7` writes, `POST /report/7` adds once per key."""

    def __init__(self, path: Path, *, resource: str = RESOURCE, lock: str = LOCK, independent: bool = False) -> None:
        self.path = path
        self.guard: Guard = fencelock.guard(url_of(path), resource=resource, lock=lock, independent=independent)
        self.seen: list[Mapping[str, str]] = []
        """The fields that the handler has seen, request by request."""
        self.uncommitted: GuardedTransaction
        """The block that `/uncommitted` leaves open."""
        self.raised: BaseException = ZeroDivisionError("the handler's own")
        """What `/raise` raises."""

    def answer(self, method: str, path: str, fields: Mapping[str, str]) -> tuple[int, str]:
        """Return the status and the text of an answer."""
        self.seen.append(fields)
        match method, *path.strip("/").split("/"):
            case "GET", ("report" | "gone" as route):
                return self._read(NOT_FOUND if route == "gone" else 200)
            case "GET", "public":
                return 200, "fenced" if has_token() else str(value_in(self.path))
            case "PUT", "report", value:
                write(self.guard, fencelock.http.sequencer(), int(value))
                return 200, value
            case "POST", "report", value:
                return self._add_once(int(value))
            case "PUT", ("unguarded" | "uncommitted" as route):
                if route == "uncommitted":
                    # It ends later, as in a dependency of a framework.
                    self.uncommitted = self.guard.transaction(fencelock.http.sequencer())
                    self.uncommitted.__enter__()
                return 200, "no guard was asked"
            case _, "raise":
                raise self.raised
        return NOT_FOUND, "no such route"

    def _read(self, status: int) -> tuple[int, str]:
        with self.guard.transaction(fencelock.http.sequencer()) as connection:
            return status, str(connection.execute(f"SELECT value FROM {RESOURCE} WHERE id = 1").fetchone()[0])

    def _add_once(self, value: int) -> tuple[int, str]:
        job = once()
        with self.guard.transaction(fencelock.http.sequencer(), once=job) as connection:
            connection.execute(f"UPDATE {RESOURCE} SET value = value + ? WHERE id = 1", (value,))
            job.result = f'{{"added": {value}}}'
        return 201, job.result


def bare_asgi(report: Report) -> Any:
    """Return an application without a framework."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive
        fields = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        status, text = report.answer(scope["method"], scope["path"], fields)
        await send({"type": "http.response.start", "status": status, "headers": [(b"cache-control", b"public")]})
        await send({"type": "http.response.body", "body": text.encode()})

    return app


def bare_wsgi(report: Report) -> Any:
    """Return an application without a framework: a generator, whose code runs when the server wants its first part."""

    def app(environ: Any, start_response: Any) -> Any:
        fields = {name[5:].lower().replace("_", "-"): value for name, value in environ.items() if name[:5] == "HTTP_"}
        status, text = report.answer(environ["REQUEST_METHOD"], environ["PATH_INFO"], fields)
        start_response(f"{status} Status", [("Cache-Control", "public")])
        yield text.encode()

    return app


def _asgi(report: Report, **options: Any) -> Service:
    return over_asgi(FencingMiddleware(bare_asgi(report), **options))


def _wsgi(report: Report, **options: Any) -> Service:
    return over_wsgi(WSGIFencingMiddleware(bare_wsgi(report), **options))


def starlette_app(report: Report) -> Any:
    """Return a Starlette application; its handler is synchronous, and runs in a thread."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def endpoint(request: Request) -> PlainTextResponse:
        status, text = report.answer(request.method, request.url.path, request.headers)
        return PlainTextResponse(text, status, {"Cache-Control": "public"})

    return Starlette(routes=[Route("/{path:path}", endpoint, methods=METHODS)])


def _starlette(report: Report, **options: Any) -> Service:
    app = starlette_app(report)
    app.add_middleware(FencingMiddleware, **options)
    return over_asgi(app)


def _outside_starlette(report: Report, **options: Any) -> Service:
    return over_asgi(FencingMiddleware(starlette_app(report), **options))


def _fastapi(report: Report, **options: Any) -> Service:
    from fastapi import FastAPI, Request, Response

    app = FastAPI(openapi_url=None)
    app.add_middleware(FencingMiddleware, **options)

    @app.api_route("/{path:path}", methods=METHODS)
    def endpoint(path: str, request: Request) -> Response:
        status, text = report.answer(request.method, f"/{path}", request.headers)
        return Response(text, status, {"Cache-Control": "public"})

    return over_asgi(app)


def litestar_app(report: Report, *inits: Any, **more: Any) -> Any:
    """Return a Litestar application."""
    from litestar import HttpMethod, Litestar, MediaType, Request, Response, route

    @route("/{path:path}", http_method=[HttpMethod(method) for method in METHODS], sync_to_thread=True)
    def endpoint(request: Request[Any, Any, Any]) -> Response[str]:
        status, text = report.answer(request.method, request.scope["path"], request.headers)
        return Response(text, status_code=status, headers={"Cache-Control": "public"}, media_type=MediaType.TEXT)

    # By itself it logs for the whole process, from a thread, on the stream that a test has for its own time.
    return Litestar([endpoint], on_app_init=list(inits), openapi_config=None, logging_config=None, **more)


def _litestar(report: Report, **options: Any) -> Service:
    return over_asgi(litestar_app(report, init_litestar(**options)))


def flask_app(report: Report) -> Any:
    """Return a Flask application."""
    from flask import Flask, request

    app = Flask("report")

    @app.route("/<path:path>", methods=METHODS)
    def endpoint(path: str) -> Any:
        fields = {name.lower(): value for name, value in request.headers.items()}
        status, text = report.answer(request.method, f"/{path}", fields)
        return text, status, {"Cache-Control": "public"}

    return app


def _flask(report: Report, **options: Any) -> Service:
    app = flask_app(report)
    init_flask(app, **options)
    return over_wsgi(app)


def django_settings(report: Report, options: dict[str, Any]) -> AbstractContextManager[Any]:
    """Set up Django for one test: one view, behind the middleware."""
    import_module("tests.integrations.djangos")  # It sets Django up, once per process.
    from django.http import HttpRequest, HttpResponse
    from django.test import override_settings
    from django.urls import re_path

    def view(request: HttpRequest) -> HttpResponse:
        fields = {name.lower(): value for name, value in request.headers.items()}
        raw: list[tuple[bytes, bytes]] = getattr(request, "scope", {"headers": []})["headers"]
        fields |= {name.decode(): value.decode("latin-1") for name, value in raw}
        status, text = report.answer(str(request.method), request.path, fields)
        return HttpResponse(text, status=status, headers={"Cache-Control": "public"})

    DjangoReport.options = options
    urls: Any = ModuleType("urls")
    urls.urlpatterns = [re_path("", view)]
    middleware = [f"{__name__}.CuriousMiddleware", f"{__name__}.DjangoReport"]
    return override_settings(ROOT_URLCONF=urls, MIDDLEWARE=middleware, ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None)


class CuriousMiddleware:
    """A middleware in front that has looked at all fields, the token too."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Any) -> None:
        from asgiref.sync import iscoroutinefunction, markcoroutinefunction

        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        dict(request.headers)
        return self.get_response(request)


class DjangoReport:
    """The middleware with the options of a test; Django makes one for each handler."""

    options: dict[str, Any]
    sync_capable = async_capable = True

    def __new__(cls, get_response: Any) -> Any:
        options = {name: staticmethod(value) if callable(value) else value for name, value in cls.options.items()}
        return type("Fenced", (fencelock.http.DjangoFencingMiddleware,), options)(get_response)


def _django(report: Report, **options: Any) -> Service:
    from django.core.handlers.wsgi import WSGIHandler

    return _with_settings(report, options, lambda: over_wsgi(WSGIHandler()))


def _django_asgi(report: Report, **options: Any) -> Service:
    from django.core.handlers.asgi import ASGIHandler

    return _with_settings(report, options, lambda: over_asgi(ASGIHandler()))


def _with_settings(report: Report, options: dict[str, Any], make: Callable[[], Service]) -> Service:
    with django_settings(report, options):
        made = make()

    def send(*request: Any) -> Any:
        with django_settings(report, options):
            return made.send(*request)

    return Service(send)


FRAMEWORKS: dict[str, Callable[..., Service]] = {
    "asgi": _asgi,
    "starlette": _starlette,
    "outside-starlette": _outside_starlette,
    "fastapi": _fastapi,
    "litestar": _litestar,
    "wsgi": _wsgi,
    "flask": _flask,
    "django": _django,
    "django-asgi": _django_asgi,
}
