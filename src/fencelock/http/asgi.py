"""The middleware for ASGI: Starlette, FastAPI, Litestar, and applications without a framework.

Promise: a handler's guard error becomes a problem wherever the middleware stands, also around an application that
has sent a 500 and raises the error afterwards: an answer of 500 or above waits until the application has ended. Scopes
of other types than `http` pass untouched. Never: an answer changed whose head was sent.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from fencelock._api.base_guard import BaseGuard
from fencelock._remote.fields import KEY_FIELD, SEALED_FIELD, TOKEN_FIELD
from fencelock.errors import FencelockError
from fencelock.http.frameworks import check_litestar, check_raises
from fencelock.http.seal_route import answer_seal_async, is_seal
from fencelock.http.service import (
    SERVER_ERROR,
    FencedRequest,
    HTTPAnswer,
    Required,
    ServiceRules,
    answering,
    needs_token,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_HELD_BYTES = 65_536
"""An answer of 500 or above whose body is longer is sent on, and then counts as begun."""
_REQUEST_KEY = "fencelock.request"
_TOKEN = TOKEN_FIELD.encode()
_START = "http.response.start"


class FencingMiddleware:
    """Brings the request's sequencer to `fencelock.http.sequencer()`, and answers a guard's errors as problems.

    `app.add_middleware(FencingMiddleware, lock="nightly-report")`. `lock`: the only lock whose holders are let in; None
    leaves that to the guards. `required(method, path)`: whether a request without a token is refused; by default those
    that may change something are. `guards`: the service's guards, which a POST to /.well-known/fencing/seal seals.
    ConfigError where a framework would turn a guard's error into a 500 of its own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        lock: str | None = None,
        required: Required = needs_token,
        guards: Iterable[BaseGuard] = (),
    ) -> None:
        check_raises(app)
        self._app = app
        self._rules = ServiceRules(lock, required, guards)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass on what is none."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        check_litestar(scope.get("litestar_app"))
        request = scope.get(_REQUEST_KEY) or _read(scope)
        await self._answer(request, {**without_token(scope), _REQUEST_KEY: request}, receive, send)

    async def _answer(self, request: FencedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        sender = _Sender(request, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            with answering(request):
                self._rules.check(request)
                if is_seal(self._rules.guards, scope["method"], path):
                    await _send(send, await answer_seal_async(self._rules.guards, request))
                else:
                    await self._app(scope, receive, sender.send)
        except Exception as error:
            answer = request.answer_to(sender.refusal or error)
            # What was held back is the application's own answer to its error.
            if answer is None or sender.is_sent:
                await sender.flush()
                raise
            await _send(send, answer)
        else:
            await sender.flush()


def without_token(scope: Scope) -> dict[str, Any]:
    """Return a scope for the handler, without the token; the server, which logs the request, keeps its own."""
    return {**scope, "headers": [(name, value) for name, value in scope["headers"] if name.lower() != _TOKEN]}


def _read(scope: Scope) -> FencedRequest:
    values: dict[str, list[str]] = {TOKEN_FIELD: [], SEALED_FIELD: [], KEY_FIELD: []}
    for name, value in scope["headers"]:
        if (known := values.get(name.decode("latin-1").lower())) is not None:
            known.append(value.decode("latin-1"))
    target = (scope["method"], scope["path"], scope.get("query_string", b"").decode("latin-1"))
    return FencedRequest(target, values[TOKEN_FIELD], values[SEALED_FIELD], values[KEY_FIELD])


class _Sender:
    """Sends an answer on, its head completed. One of 500 or above is held back, since an error may follow it."""

    def __init__(self, request: FencedRequest, send: Send) -> None:
        self.is_sent = False
        self.refusal: FencelockError | None = None
        """Why the answer may not begin: Litestar raises another error in its place."""
        self._request = request
        self._send = send
        self._held: list[Message] = []
        self._held_bytes = 0

    async def send(self, message: Message) -> None:
        """Send one message of the application, or hold it back."""
        if message["type"] == _START:
            message = {**message, "headers": self._completed(message)}
            self._held.append(message)
            # Starlette and FastAPI send a 500 and raise the error afterwards, which may be a guard's.
            if message["status"] < SERVER_ERROR:
                await self.flush()
        elif self._held:
            self._held.append(message)
            self._held_bytes += len(message.get("body", b""))
            if self._held_bytes > MAX_HELD_BYTES:
                await self.flush()
        else:
            await self._send(message)

    async def flush(self) -> None:
        """Send what was held back."""
        held, self._held = self._held, []
        for message in held:
            self.is_sent = True
            await self._send(message)

    def _completed(self, message: Message) -> list[tuple[bytes, bytes]]:
        given = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
        try:
            return _encoded(self._request.completed(message["status"], given))
        except FencelockError as error:
            self.refusal = error
            raise


async def _send(send: Send, answer: HTTPAnswer) -> None:
    await send({"type": _START, "status": answer.status, "headers": _encoded(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body})


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
