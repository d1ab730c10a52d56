"""One way to use each client library, so that a rule is one test for all of them."""

import asyncio
import ssl
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import aiohttp
import httpx
import httpx2
import requests

import fencelock.http

Value = TypeVar("Value")
LIMIT_S = 30.0
NO_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A context without certificates, which httpx would read anew for each client."""


class Reply(NamedTuple):
    """What a caller sees of an answer, and the fields of the request that the library shows it with."""

    status: int
    body: bytes
    shown: Mapping[str, str]


class Caller(Protocol):
    """A client of a lease."""

    raw: Any
    """The fenced client itself."""

    def call(self, method: str, path: str, **options: Any) -> Reply: ...
    def close(self) -> None: ...


def with_timeout(library: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return a request's options for httpx: a limit on the wait for an answer, and none that a busy machine exceeds."""
    read_s = options.pop("read_timeout", LIMIT_S)
    return options | {"timeout": library.Timeout(LIMIT_S, read=read_s)}


class HttpxCaller:
    library: Any = httpx

    def __init__(self, lease: Any, url: str, *, setting: Mapping[str, Any] | None = None, **options: Any) -> None:
        inner = self.library.Client(base_url=url, trust_env=False, verify=NO_TRUST, **setting or {})
        self.raw = fencelock.http.client(lease, inner, **options)

    def call(self, method: str, path: str, *, follow: bool = False, stream: bool = False, **options: Any) -> Reply:
        options = with_timeout(self.library, options)
        if stream:
            with self.raw.stream(method, path, follow_redirects=follow, **options) as answer:
                return Reply(answer.status_code, answer.read(), answer.request.headers)
        answer = self.raw.request(method, path, follow_redirects=follow, **options)
        return Reply(answer.status_code, answer.content, answer.request.headers)

    def close(self) -> None:
        self.raw.close()


class Httpx2Caller(HttpxCaller):
    library = httpx2


class AsyncCaller:
    """What the asynchronous callers share: a loop of their own."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()

    def run(self, waiting: Coroutine[Any, Any, Value]) -> Value:
        return self.runner.run(waiting)

    def call(self, method: str, path: str, **options: Any) -> Reply:
        return self.run(self.request(method, path, **options))

    async def request(self, method: str, path: str, **options: Any) -> Reply:
        raise NotImplementedError


class AsyncHttpxCaller(AsyncCaller):
    library: Any = httpx

    def __init__(self, lease: Any, url: str, *, setting: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__()
        inner = self.library.AsyncClient(base_url=url, trust_env=False, verify=NO_TRUST, **setting or {})
        self.raw = fencelock.http.client(lease, inner, **options)

    async def request(
        self, method: str, path: str, *, follow: bool = False, stream: bool = False, **options: Any
    ) -> Reply:
        options = with_timeout(self.library, options)
        if stream:
            async with self.raw.stream(method, path, follow_redirects=follow, **options) as answer:
                return Reply(answer.status_code, await answer.aread(), answer.request.headers)
        answer = await self.raw.request(method, path, follow_redirects=follow, **options)
        return Reply(answer.status_code, answer.content, answer.request.headers)

    def close(self) -> None:
        self.run(self.raw.aclose())
        self.runner.close()


class AsyncHttpx2Caller(AsyncHttpxCaller):
    library = httpx2


class RequestsCaller:
    def __init__(self, lease: Any, url: str, *, setting: Mapping[str, Any] | None = None, **options: Any) -> None:
        inner = requests.Session()
        inner.trust_env = False
        for name, value in (setting or {}).items():
            setattr(inner, name, value)
        self._url = url
        self.raw = fencelock.http.client(lease, inner, **{"origins": [url]} | options)

    def call(self, method: str, path: str, *, follow: bool = False, **options: Any) -> Reply:
        url = path if path.startswith("http") else self._url + path
        options["timeout"] = (LIMIT_S, options.pop("read_timeout", LIMIT_S))
        answer = self.raw.request(method, url, allow_redirects=follow, **options)
        return Reply(answer.status_code, answer.content, answer.request.headers)

    def close(self) -> None:
        self.raw.close()


class AiohttpCaller(AsyncCaller):
    def __init__(self, lease: Any, url: str, *, setting: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__()
        self._options = {"base_url": f"{url}/" if url else None} | dict(setting or {})
        try:
            self.raw = self.run(self._opened(lease, options))
        except fencelock.ConfigError:
            self.runner.close()
            raise

    async def _opened(self, lease: Any, options: Mapping[str, Any]) -> aiohttp.ClientSession:
        inner = aiohttp.ClientSession(**self._options)
        try:
            return fencelock.http.client(lease, inner, **options)
        except fencelock.ConfigError:
            await inner.close()
            raise

    async def request(
        self, method: str, path: str, *, follow: bool = False, stream: bool = False, **options: Any
    ) -> Reply:
        options["timeout"] = aiohttp.ClientTimeout(sock_read=options.pop("read_timeout", LIMIT_S))
        async with self.raw.request(method, path, allow_redirects=follow, **options) as answer:
            return Reply(answer.status, await answer.read(), answer.request_info.headers)

    def close(self) -> None:
        self.run(self.raw.close())
        self.runner.close()


CALLERS = (HttpxCaller, Httpx2Caller, AsyncHttpxCaller, AsyncHttpx2Caller, RequestsCaller, AiohttpCaller)
