"""Sessions of aiohttp: a middleware beneath all others, around each request of a call.

Promise: every request passes the middleware, those of redirects too. The token is in a request only while it is sent,
and in nothing that the caller, other middlewares or an error gets to see. Never: a request that was sent, sent once
more by aiohttp.
"""

from typing import Any, cast

import aiohttp
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession
from multidict import CIMultiDict

from fencelock._remote.fields import KEY_FIELD, SEALED_FIELD, TOKEN_FIELD
from fencelock.http.clients.rules import ClientRules, OutgoingRequest, origin_of, wait_for_others_async
from fencelock.http.problems import MAX_PROBLEM_BYTES

_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)


def base_url(client: ClientSession) -> str | None:
    """Return the base URL of a session; None if it has none."""
    # There is no public way to read it.
    url = client._base_url  # noqa: SLF001
    return None if url is None else str(url)


def fenced(client: ClientSession, rules: ClientRules) -> ClientSession:
    """Return a session that shares everything with this one but the middleware."""
    kind: Any = FencedSession
    if type(client) is not ClientSession:
        kind = type(FencedSession.__name__, (FencedSession, type(client)), {})
    other: ClientSession = object.__new__(kind)
    other.__dict__.update(client.__dict__)
    # The session itself is kept, for it warns when it goes unclosed.
    other.__dict__.update(
        fencing=FencingHop(rules),
        original=client,
        _response_class=type("FencedResponse", (FencedResponse, client._response_class), {}),  # noqa: SLF001
    )
    return other


class FencingHop:
    """The middleware of one session of a lease."""

    def __init__(self, rules: ClientRules) -> None:
        self.rules = rules

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send one request with the token, and return its answer if a guard has admitted it."""
        outgoing = self._outgoing(request)
        try:
            outgoing.begin()
            await wait_for_others_async(outgoing)
            return await self._exchange(request, handler, outgoing)
        finally:
            outgoing.end()

    async def _exchange(
        self, request: ClientRequest, handler: ClientHandlerType, outgoing: OutgoingRequest
    ) -> ClientResponse:
        response = await self._sent(request, handler, outgoing)
        response.outgoing = outgoing  # type: ignore[attr-defined]
        try:
            is_problem = outgoing.may_be_problem(response.status, _fields(response))
            body = await cast("FencedResponse", response).read_problem() if is_problem else b""
            outgoing.check(response.status, _fields(response), body)
        except BaseException:
            response.close()
            raise
        return response

    def _outgoing(self, request: ClientRequest) -> OutgoingRequest:
        url = request.url
        # Not `host`, which shows a name in the letters of its language.
        origin = origin_of(url.scheme, url.raw_host or "", url.port)
        key = request.headers.get(KEY_FIELD)
        return OutgoingRequest(self.rules, request.method, origin, url.path, key, is_proxied=request.proxy is not None)

    @staticmethod
    async def _sent(request: ClientRequest, handler: ClientHandlerType, outgoing: OutgoingRequest) -> ClientResponse:
        request.headers.update(outgoing.fields())
        try:
            return await handler(request)
        except _NOT_SENT as error:
            raise outgoing.not_sent(error) from error
        except (aiohttp.ClientError, OSError) as error:
            # From a kept connection that ended, aiohttp would take its own error for a reason to send it once more.
            raise outgoing.unanswered(error) from error
        finally:
            # The answer refers to these very fields.
            for name in (TOKEN_FIELD, SEALED_FIELD):
                request.headers.pop(name, None)


def _fields(response: ClientResponse) -> Any:
    """Return the function that gives a field's value; aiohttp keeps the lines of a list apart."""
    return lambda name: ", ".join(response.headers.getall(name, ())) or None


class FencedResponse(ClientResponse):
    """An answer to a session of a lease: half of one is a lost answer."""

    outgoing: OutgoingRequest

    async def read_problem(self) -> bytes | None:
        """Return the decoded body, and keep it for the caller; None if it is longer than a problem."""
        body = b""
        try:
            while piece := await self.content.readany():
                body += piece
                if len(body) > MAX_PROBLEM_BYTES:
                    return None
        except (aiohttp.ClientError, OSError) as error:
            raise self.outgoing.unanswered(error) from error
        self._body = body
        return body

    async def read(self) -> bytes:
        """Return the whole body."""
        try:
            return await super().read()
        except (aiohttp.ClientError, OSError) as error:
            raise self.outgoing.unanswered(error) from error


class Heir:
    """A class whose subclasses aiohttp does not warn of: its own hook comes later in the order of resolution."""

    def __init_subclass__(cls) -> None:
        """Do nothing."""


class FencedSession(Heir, ClientSession):
    """A session of a lease: all methods of a session go through `_request`."""

    fencing: FencingHop
    original: ClientSession

    def __del__(self, _warnings: object = None) -> None:
        """Do nothing: the original session warns if it was not closed."""

    async def _request(self, method: str, str_or_url: Any, **options: Any) -> ClientResponse:
        rules = self.fencing.rules
        named: CIMultiDict[str] = CIMultiDict(options.pop("headers", None) or ())
        key = rules.key_for(method, named.get(KEY_FIELD, self.headers.get(KEY_FIELD)))
        if key is not None:
            # Redirects and middlewares send it again, with the same key.
            named[KEY_FIELD] = key
        outer = options.pop("middlewares", None)
        middlewares = (*(self._middlewares if outer is None else outer), self.fencing)
        try:
            return await super()._request(method, str_or_url, headers=named, middlewares=middlewares, **options)
        except TimeoutError as error:
            # The limit of the whole call, which ends in no middleware.
            raise rules.lost(method, str(str_or_url), key, error) from error
