"""The middleware for WSGI: Flask, and applications without a framework.

Promise: the same answers as the ASGI middleware's. The head of an answer waits for the first part of its body, so that
an error before it is answered as a problem. The application's own iterable is closed. Never: an answer changed whose
head was sent; a request's sequencer seen by the next request of the thread.
"""

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from fencelock._api.base_guard import BaseGuard
from fencelock._remote.fields import KEY_FIELD, SEALED_FIELD, TOKEN_FIELD
from fencelock._remote.sealing import check_sync
from fencelock.http.frameworks import check_wsgi
from fencelock.http.seal_route import answer_seal, is_seal
from fencelock.http.service import (
    FencedRequest,
    Headers,
    HTTPAnswer,
    Required,
    ServiceRules,
    answering,
    needs_token,
)

REQUEST_KEY = "fencelock.request"


class WSGIFencingMiddleware:
    """Brings the request's sequencer to `fencelock.http.sequencer()`, and answers a guard's errors as problems.

    `app = WSGIFencingMiddleware(app, lock="nightly-report")`; for Flask, `init_flask`; for Django,
    `DjangoFencingMiddleware`. The arguments are those of `FencingMiddleware`, and the guards are sync ones.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        lock: str | None = None,
        required: Required = needs_token,
        guards: Iterable[BaseGuard] = (),
    ) -> None:
        check_wsgi(app)
        self._app = app
        self._rules = ServiceRules(lock, required, guards)
        self._guards = check_sync(self._rules.guards)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        request = read_request(environ)
        head = _Head(request, start_response)
        try:
            with answering(request):
                self._rules.check(request)
                if is_seal(self._guards, environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")):
                    return _send(start_response, answer_seal(self._guards, request))
                body = self._app(environ, head.start)
        except Exception as error:
            return head.answer(error)
        return _Body(body, head, request)


def read_request(environ: WSGIEnvironment) -> FencedRequest:
    """Return the request of an environment, which keeps it instead of the token."""
    known = environ.get(REQUEST_KEY)
    if isinstance(known, FencedRequest):
        return known
    # Taken out, because frameworks log the environment, or show it on their error pages.
    token = environ.pop(_variable(TOKEN_FIELD), None)
    values = [environ.get(_variable(name)) for name in (SEALED_FIELD, KEY_FIELD)]
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
    target = (environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""))
    request = FencedRequest(target, *([] if value is None else [value] for value in (token, *values)))
    environ[REQUEST_KEY] = request
    return request


def _variable(field: str) -> str:
    return f"HTTP_{field.upper().replace('-', '_')}"


class _Head:
    """The head of an answer: what the application has started, kept until the first part of its body."""

    def __init__(self, request: FencedRequest, start_response: StartResponse) -> None:
        self.is_sent = False
        self._request = request
        self._start_response = start_response
        self._started: tuple[str, Headers] | None = None
        self._write: Callable[[bytes], object] | None = None

    def start(self, status: str, headers: Headers, exc_info: Any = None, /) -> Callable[[bytes], object]:
        """Be the `start_response` of the application."""
        if self.is_sent:
            # The server raises the error again, if there is one: it cannot change the answer either.
            return self._start_response(status, headers, exc_info)
        self._started = (status, headers)
        return self._write_now

    def send(self) -> None:
        """Send the head, completed, if that has not happened yet."""
        if not self.is_sent and self._started is not None:
            status, headers = self._started
            completed = self._request.completed(int(status.split(maxsplit=1)[0]), headers)
            self.is_sent = True
            self._write = self._start_response(status, completed)

    def answer(self, error: Exception) -> list[bytes]:
        """Send the answer to an error of the application, or raise it again."""
        answer = None if self.is_sent else self._request.answer_to(error)
        if answer is None:
            self.send()
            raise error
        self.is_sent = True
        return _send(self._start_response, answer)

    def _write_now(self, data: bytes) -> None:
        self.send()
        assert self._write is not None, "the application has started its answer"
        self._write(data)


class _Body:
    """The application's body, each part of which is made while the request is being answered."""

    def __init__(self, body: Iterable[bytes], head: _Head, request: FencedRequest) -> None:
        self._body = body
        self._head = head
        self._request = request
        self._parts: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            # Each part by itself: between two of them the thread may answer another request.
            with answering(self._request):
                self._parts = self._parts or iter(self._body)
                part = next(self._parts, None)
            self._head.send()
        except Exception as error:
            self._parts = iter(self._head.answer(error))
            part = next(self._parts)
        if part is None:
            raise StopIteration
        return part

    def close(self) -> None:
        """Close the application's iterable, as the server would."""
        close = getattr(self._body, "close", None)
        if close is not None:
            with answering(self._request):
                close()


def _send(start_response: StartResponse, answer: HTTPAnswer) -> list[bytes]:
    start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", answer.headers)
    return [answer.body]
