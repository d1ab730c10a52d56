"""Clients of httpx and httpx2, synchronous and asynchronous: a transport around each of the client's own.

Promise: every request passes the transport, those of redirects and of authentication too. The token is in the copy that
the inner transport sends, and in no request that the caller, its hooks or an error gets to see.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from fencelock._remote.fields import KEY_FIELD, TOKEN_FIELD
from fencelock.http.clients.rules import ClientRules, OutgoingRequest, origin_of, wait_for_others, wait_for_others_async
from fencelock.http.problems import MAX_PROBLEM_BYTES

if TYPE_CHECKING:
    import httpx

    AnyHttpx = httpx.Client | httpx.AsyncClient

_PIECE_BYTES = 64
"""How much of a compressed problem is decoded at once: a piece may become a thousand times as long."""


def base_url(client: "AnyHttpx") -> str | None:
    """Return the base URL of a client; None if it has none."""
    return str(client.base_url) if client.base_url.host else None


def fenced(client: "AnyHttpx", rules: ClientRules) -> object:
    """Return a client that shares everything with this one but the transports."""
    library = _library_of(client)
    is_async = isinstance(client, library.AsyncClient)
    wrapper = AsyncFencedTransport if is_async else FencedTransport
    other = object.__new__(type(client))
    other.__dict__.update(client.__dict__)
    # There is no public way to change the transports of a client. OpenTelemetry and others do it in this way.
    other._transport = wrapper(client._transport, rules, library)  # type: ignore[assignment]  # noqa: SLF001
    other._mounts = {  # type: ignore[assignment]
        pattern: None if inner is None else wrapper(inner, rules, library)
        for pattern, inner in client._mounts.items()  # noqa: SLF001
    }
    return other


def _library_of(client: object) -> Any:
    """Return the module httpx or httpx2."""
    roots = [parent.__module__.partition(".")[0] for parent in type(client).__mro__]
    return import_module("httpx2" if "httpx2" in roots else "httpx")


def _is_own(transport: object, library: Any) -> bool:
    """Return whether a transport sends each request by the library's own code."""
    kind = type(transport)
    own = (library.HTTPTransport.handle_request, library.AsyncHTTPTransport.handle_async_request)
    return getattr(kind, "handle_request", None) is own[0] or getattr(kind, "handle_async_request", None) is own[1]


class BaseFencedTransport:
    """What the transports of both kinds share: the request that is sent, and which errors mean that none was."""

    def __init__(self, inner: Any, rules: ClientRules, library: Any) -> None:
        self._inner = inner
        self._rules = rules
        self._library = library
        # A transport that others made may have sent the request before, and lost the answer.
        self._not_sent = (
            (library.ConnectError, library.ConnectTimeout, library.PoolTimeout) if _is_own(inner, library) else ()
        )
        self._is_proxied = "Proxy" in type(getattr(inner, "_pool", None)).__name__

    def _outgoing(self, request: "httpx.Request") -> OutgoingRequest:
        url = request.url
        key = self._rules.key_for(request.method, request.headers.get(KEY_FIELD))
        if key is not None:
            # In the caller's request: authentication and redirects send it again, with the same key.
            request.headers[KEY_FIELD] = key
        # Not `host`, which shows a name in the letters of its language.
        origin = origin_of(url.scheme, url.raw_host.decode("ascii"), url.port)
        return OutgoingRequest(self._rules, request.method, origin, url.path, key, is_proxied=self._is_proxied)

    @contextmanager
    def _sending(self, request: "httpx.Request", outgoing: OutgoingRequest) -> "Iterator[httpx.Request]":
        """A block that sends the request as it is yielded, and in which the library's errors become fencelock's."""
        # A copy, since the library keeps the original in its responses, errors and hooks: the token must be in none.
        sent: httpx.Request = self._library.Request(
            request.method, request.url, headers=request.headers, stream=request.stream, extensions=request.extensions
        )
        sent.headers.update(outgoing.fields())
        try:
            yield sent
        except self._not_sent as error:
            raise outgoing.not_sent(error) from error
        except self._library.TransportError as error:
            raise outgoing.unanswered(error) from error
        finally:
            del sent.headers[TOKEN_FIELD]

    def _decoded(self, response: "httpx.Response", raw: bytes | None) -> bytes | None:
        """Return the decoded body of a problem; None if it is too long, or several codings could make it so at once."""
        if raw is None or "," in response.headers.get("content-encoding", ""):
            return None
        pieces = (raw[at : at + _PIECE_BYTES] for at in range(0, len(raw), _PIECE_BYTES))
        body = b""
        try:
            for decoded in self._library.Response(200, headers=response.headers, content=pieces).iter_bytes():
                body += decoded
                if len(body) > MAX_PROBLEM_BYTES:
                    return None
        except self._library.DecodingError:
            return b""
        return body


class FencedTransport(BaseFencedTransport):
    """The transport of a synchronous client of a lease."""

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()

    def handle_request(self, request: "httpx.Request") -> "httpx.Response":
        """Send one request with the token, and return its answer if a guard has admitted it."""
        outgoing = self._outgoing(request)
        try:
            outgoing.begin()
            wait_for_others(outgoing)
            return self._exchange(request, outgoing)
        finally:
            outgoing.end()

    def _exchange(self, request: "httpx.Request", outgoing: OutgoingRequest) -> "httpx.Response":
        with self._sending(request, outgoing) as sent:
            response: httpx.Response = self._inner.handle_request(sent)
        stream = response.stream = _stream_classes(self._library)[0](response.stream, outgoing, self._library)
        try:
            is_problem = outgoing.may_be_problem(response.status_code, response.headers.get)
            body = self._decoded(response, stream.read_problem()) if is_problem else b""
            outgoing.check(response.status_code, response.headers.get, body)
        except BaseException:
            response.close()
            raise
        return response


class AsyncFencedTransport(BaseFencedTransport):
    """The transport of an asynchronous client of a lease."""

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner.__aexit__(*error)

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()

    async def handle_async_request(self, request: "httpx.Request") -> "httpx.Response":
        """Send one request with the token, and return its answer if a guard has admitted it."""
        outgoing = self._outgoing(request)
        try:
            outgoing.begin()
            await wait_for_others_async(outgoing)
            return await self._exchange(request, outgoing)
        finally:
            outgoing.end()

    async def _exchange(self, request: "httpx.Request", outgoing: OutgoingRequest) -> "httpx.Response":
        with self._sending(request, outgoing) as sent:
            response: httpx.Response = await self._inner.handle_async_request(sent)
        stream = response.stream = _stream_classes(self._library)[1](response.stream, outgoing, self._library)
        try:
            is_problem = outgoing.may_be_problem(response.status_code, response.headers.get)
            body = self._decoded(response, await stream.read_problem()) if is_problem else b""
            outgoing.check(response.status_code, response.headers.get, body)
        except BaseException:
            await response.aclose()
            raise
        return response


class BaseFencedStream:
    """The body of an answer: half of one is a lost answer."""

    def __init__(self, inner: Any, outgoing: OutgoingRequest, library: Any) -> None:
        self._inner = inner
        self._outgoing = outgoing
        self._lost = library.TransportError
        self._whole: bytes | None = None


class FencedStream(BaseFencedStream):
    """The body of an answer to a synchronous client."""

    def read_problem(self) -> bytes | None:
        """Return the body, and keep it for whoever iterates; None if it is longer than a problem."""
        body = b""
        for chunk in self:
            body += chunk
            if len(body) > MAX_PROBLEM_BYTES:
                return None
        self._whole = body
        return body

    def __iter__(self) -> Iterator[bytes]:
        if self._whole is not None:
            yield self._whole
            return
        try:
            yield from self._inner
        except self._lost as error:
            raise self._outgoing.unanswered(error) from error

    def close(self) -> None:
        """Close the inner body."""
        self._inner.close()


class AsyncFencedStream(BaseFencedStream):
    """The body of an answer to an asynchronous client."""

    async def read_problem(self) -> bytes | None:
        """Return the body, and keep it for whoever iterates; None if it is longer than a problem."""
        body = b""
        async with aclosing(self.__aiter__()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > MAX_PROBLEM_BYTES:
                    return None
        self._whole = body
        return body

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        if self._whole is not None:
            yield self._whole
            return
        try:
            async for chunk in self._inner:
                yield chunk
        except self._lost as error:
            raise self._outgoing.unanswered(error) from error

    async def aclose(self) -> None:
        """Close the inner body."""
        await self._inner.aclose()


@cache
def _stream_classes(library: Any) -> tuple[type[Any], type[Any]]:
    """Return the classes of bodies for httpx or httpx2, which take only instances of classes of their own."""
    return (
        type("FencedStream", (FencedStream, library.SyncByteStream), {}),
        type("AsyncFencedStream", (AsyncFencedStream, library.AsyncByteStream), {}),
    )
