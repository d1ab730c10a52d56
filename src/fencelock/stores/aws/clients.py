"""Clients of AWS for threads and for loops: each sends a plain `Call` once, and returns the reply.

Promise: a request is sent once: the retries of botocore, aiobotocore and aiohttp are off, whatever the environment and
the configuration say, because a conditional write that is repeated refuses itself. On a loop a call takes
`request_timeout_s` at most, once the loop has its client: making that may ask for credentials, which botocore bounds.
In a thread each address, and each part of a long reply, has its own. Refusals that the caller expects are values; every
other error becomes a FencelockError whose `definite` is correct, and so does a reply that is cut off or is not the
service's own (`replies.py`). The URL alone names the server: an endpoint in the
environment or in a configuration file is not used. A forked child uses clients of its own, and never touches its
parent's, which it keeps for that reason.
Never: botocore called in a thread of the program's if a helper can be started, see `stores/helper_threads.py`; a
credential shown.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeVar

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.loaders import Loader

from fencelock._install import install_extra
from fencelock._platform import at_fork
from fencelock.errors import MissingDependencyError
from fencelock.stores.aws.errors import code_of, map_error, map_setup_error, message_of
from fencelock.stores.aws.replies import check_reply
from fencelock.stores.aws.url import AwsConnectionInfo
from fencelock.stores.errors import raise_mapped
from fencelock.stores.helper_threads import in_helper_thread
from fencelock.stores.pauses import Pause
from fencelock.stores.together import Together

MAX_CONNECTIONS = 1000
"""That one client keeps open, as many as there were calls at a time."""
MAX_CONNECT_S = 2.0
"""The longest attempt to connect to one address."""
MAX_TIMEOUTS = 10
"""So many times its timeout a call is awaited: each address, and each part of a long reply, has its own."""
_BODY = "Body"
_LOADER = Loader()
"""Reads the descriptions of the services, once in a process: one takes 0.1 s."""


class Call(NamedTuple):
    """One request: the name of botocore's method, and its arguments.

    `expects` names the codes of the refusals that are answers to the caller; each comes back as a Refusal.
    """

    operation: str
    arguments: dict[str, Any]
    expects: frozenset[str] = frozenset()


class Refusal(NamedTuple):
    """The service did nothing, and said why. `reply` is all that it said, CancellationReasons for example."""

    code: str
    message: str
    reply: dict[str, Any]


Reply = dict[str, Any] | Refusal
"""What botocore returns: `ResponseMetadata` has the headers, and a `Body` is bytes."""
Result = TypeVar("Result")
Calls = Generator[Call | Pause | Together, Any, Result]
"""Yields calls, pauses and several runs at a time, is sent the replies, and returns a Result."""


class _NativeClients:
    """The clients of one process with one configuration: one for each timeout, and one for each loop.

    The first one takes 50 ms to make, each other 5 ms and, with TLS, 50 ms to connect.
    """

    def __init__(self, info: AwsConnectionInfo) -> None:
        self._info = info
        # Making a client changes the session, which is not safe for threads.
        self._mutex = threading.Lock()
        self._session: Any = None
        self._of_timeout: dict[float, Any] = {}
        self._of_loop: dict[asyncio.AbstractEventLoop, _LoopClient] = {}

    def of_timeout(self, request_timeout_s: float) -> Any:
        """Return botocore's client with this timeout."""
        if (found := self._of_timeout.get(request_timeout_s)) is not None:
            return found
        with self._mutex:
            if self._session is None:
                self._session = _configured(botocore.session.Session(profile=self._info.profile))
            connect_s = min(request_timeout_s / 2, MAX_CONNECT_S)
            config = Config(**self._settings(connect_s, request_timeout_s - connect_s))
            made = self._session.create_client(**self._arguments(), config=config)
            return self._of_timeout.setdefault(request_timeout_s, made)

    async def of_running_loop(self) -> Any:
        """Return aiobotocore's client for the running loop."""
        loop = asyncio.get_running_loop()
        if (found := self._of_loop.get(loop)) is None:
            made = await self._make_async()
            # A list first: the loops of other threads come and go meanwhile.
            for closed in [other for other in list(self._of_loop) if other.is_closed()]:
                self._of_loop.pop(closed, None)
            # If two tasks make one at a time, the second one's is dropped: it has opened nothing.
            found = self._of_loop.setdefault(loop, _LoopClient(made))
            await found.end_with_loop()
        return found.native

    async def _make_async(self) -> Any:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession

            from fencelock.stores.aws.aiohttp_session import SendOnceSession
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"{self._info.service}:// needs a client for asyncio that is not installed ({error.name}): "
                f"{install_extra('aws')}"
            ) from None
        session = _configured(AioSession(profile=self._info.profile))
        config = AioConfig(**self._settings(MAX_CONNECT_S, None), http_session_cls=SendOnceSession)
        return await session.create_client(**self._arguments(), config=config).__aenter__()

    def _arguments(self) -> dict[str, Any]:
        endpoint = self._info.endpoint
        return {
            "service_name": self._info.service,
            "region_name": self._info.region,
            "endpoint_url": endpoint,
            # Without TLS no certificates are read, which takes 50 ms.
            "verify": None if endpoint is None or endpoint.startswith("https:") else False,
        }

    def _settings(self, connect_s: float, read_s: float | None) -> dict[str, Any]:
        return {
            # Not `max_attempts`, which counts the repetitions: 1 would allow one.
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "connect_timeout": connect_s,
            "read_timeout": read_s,
            "max_pool_connections": MAX_CONNECTIONS,
            "tcp_keepalive": True,
            "ignore_configured_endpoint_urls": True,
            # Buckets of other servers have no host names of their own.
            "s3": None if self._info.endpoint is None else {"addressing_style": "path"},
            # Servers other than Amazon's do not know the newer checksums.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }


class AwsClient:
    """Sends calls from any thread. The constructor opens nothing, and nothing has to be closed: the stores of one
    process with the same configuration share botocore's clients.
    """

    def __init__(self, info: AwsConnectionInfo, request_timeout_s: float) -> None:
        self._info = info
        self._request_timeout_s = request_timeout_s

    def call(self, call: Call) -> Reply:
        """Send one request and return the reply; raise a FencelockError if there is none."""
        return in_helper_thread(partial(self._call, call), MAX_TIMEOUTS * self._request_timeout_s)

    def _call(self, call: Call) -> Reply:
        info = self._info
        try:
            native = _clients_of(info).of_timeout(self._request_timeout_s)
        except Exception as error:
            raise_mapped(map_setup_error(error, info), error)
            raise
        try:
            reply: dict[str, Any] = getattr(native, call.operation)(**call.arguments)
            if _BODY in reply:
                with closing(reply[_BODY]) as body:
                    reply[_BODY] = body.read()
        except Exception as error:
            return _expected(error, call, info)
        return reply


class AsyncAwsClient:
    """Sends calls from the tasks of any loop. The constructor opens nothing, and nothing has to be closed."""

    def __init__(self, info: AwsConnectionInfo, request_timeout_s: float) -> None:
        self._info = info
        self._request_timeout_s = request_timeout_s

    async def call(self, call: Call) -> Reply:
        """Send one request and return the reply; raise a FencelockError if there is none."""
        info = self._info
        try:
            native = await _clients_of(info).of_running_loop()
        except Exception as error:
            raise_mapped(map_setup_error(error, info), error)
            raise
        try:
            async with asyncio.timeout(self._request_timeout_s):
                reply: dict[str, Any] = await getattr(native, call.operation)(**call.arguments)
                if _BODY in reply:
                    with closing(reply[_BODY]) as body:
                        reply[_BODY] = await body.read()
        except Exception as error:
            return _expected(error, call, info)
        return reply


class _LoopClient:
    """A client that is closed with the loop's asynchronous generators, or once nobody refers to it."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self._end = _close_at_end(native)
        self._is_known = False

    async def end_with_loop(self) -> None:
        """Let the loop know the generator, so that the loop ends it."""
        if not self._is_known:
            self._is_known = True
            await anext(self._end)


async def _close_at_end(native: Any) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await native.close()


def _expected(error: Exception, call: Call, info: AwsConnectionInfo) -> Refusal:
    """Return the refusal that the caller expects; raise every other error, which is being handled, mapped."""
    if isinstance(error, ClientError) and (code := code_of(error)) in call.expects:
        return Refusal(code, message_of(error), dict(error.response))
    raise_mapped(map_error(error, info), error)
    raise error


def _configured(session: Any) -> Any:
    session.register_component("data_loader", _LOADER)
    session.register("before-parse", check_reply)
    return session


def _clients_of(info: AwsConnectionInfo) -> _NativeClients:
    key = (info.service, info.region, info.endpoint, info.profile)
    return _CLIENTS.get(key) or _CLIENTS.setdefault(key, _NativeClients(info))


def _after_fork_in_child() -> None:
    _INHERITED.extend(_CLIENTS.values())
    _CLIENTS.clear()


_CLIENTS: dict[tuple[str | None, ...], _NativeClients] = {}
_INHERITED: list[_NativeClients] = []
"""The parent's clients in a forked child, kept because destroying them would use their locks."""
at_fork(after_in_child=_after_fork_in_child)
