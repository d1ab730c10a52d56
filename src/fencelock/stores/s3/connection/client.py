"""Sends the requests of a guard, and of a source's checks, to a bucket: the clients of `stores/aws`, which get the
contents of the file that a call names.

Promise: an error of a request that only reads is definite. Never: a request sent twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.aws.clients import AsyncAwsClient, AwsClient, Call, Calls, Result
from fencelock.stores.aws.errors import only_reads
from fencelock.stores.aws.url import AwsConnectionInfo
from fencelock.stores.pauses import pausing, pausing_async
from fencelock.stores.s3.connection.calls import Body, digest_of
from fencelock.stores.together import MAX_AT_ONCE, together, together_async

REQUEST_TIMEOUT_S = 10.0
"""How long a request about a manifest may take, or about another small object."""
DATA_TIMEOUT_S = 300.0
"""How long a request for the value of a key may take, which may have gigabytes."""
_SMALL_BYTES = 2**17
"""Eight of them at a time share the line."""
_READS = {
    "get_object",
    "head_object",
    "list_objects_v2",
    "get_bucket_lifecycle_configuration",
    "get_bucket_replication",
    "get_bucket_versioning",
}


class S3Client:
    """Sends the calls of generators, from any thread and any loop."""

    def __init__(self, info: AwsConnectionInfo) -> None:
        self._info = info

    def make_client(self, timeout_s: float) -> AwsClient:
        """Return what sends calls from threads; it opens nothing."""
        return AwsClient(self._info, timeout_s)

    def make_async_client(self, timeout_s: float) -> AsyncAwsClient:
        """Return what sends calls from loops; it opens nothing."""
        return AsyncAwsClient(self._info, timeout_s)

    def run(self, calls: Calls[Result], timeout_s: float = REQUEST_TIMEOUT_S) -> Result:
        """Run the generator to its end, in the caller's thread."""
        return run_generator(calls, self.sender(timeout_s))

    async def run_async(self, calls: Calls[Result], timeout_s: float = REQUEST_TIMEOUT_S) -> Result:
        """Run the generator to its end on the running loop."""
        return await run_generator_async(calls, self.sender_async(timeout_s))

    def sender(self, timeout_s: float = REQUEST_TIMEOUT_S) -> Callable[[Any], Any]:
        """Return what performs the steps of such a generator in the caller's thread."""
        return together(pausing(partial(self._send, timeout_s=timeout_s)))

    def sender_async(self, timeout_s: float = REQUEST_TIMEOUT_S) -> Callable[[Any], Awaitable[Any]]:
        """Return what performs them on the running loop."""
        return together_async(pausing_async(partial(self._send_async, timeout_s=timeout_s)))

    def _send(self, call: Call, timeout_s: float) -> Any:
        try:
            with ExitStack() as files:
                content = _open_body(call, files)
                whole = call if content is None else _with_body(call, content, _digest(content))
                return self.make_client(_enough_s(call, timeout_s)).call(whole)
        except OutcomeUnknownError as error:
            raise _definite(error, call) from error

    async def _send_async(self, call: Call, timeout_s: float) -> Any:
        try:
            with ExitStack() as files:
                content = _open_body(call, files)
                if content is None:
                    return await self.make_async_client(_enough_s(call, timeout_s)).call(call)
                # Its digest would hold up the loop. A cancellation ends the wait for the thread, and not the thread: so
                # the file is opened out here, where it is closed at once.
                whole = _with_body(call, content, await asyncio.to_thread(_digest, content))
                # All of a call counts there, and files that are uploaded at the same time share the line.
                return await self.make_async_client(MAX_AT_ONCE * DATA_TIMEOUT_S).call(whole)
        except OutcomeUnknownError as error:
            raise _definite(error, call) from error


def _enough_s(call: Call, timeout_s: float) -> float:
    body: Body = call.arguments.get("Body", b"")
    is_small = isinstance(body, bytes) and len(body) <= _SMALL_BYTES
    return timeout_s if is_small else DATA_TIMEOUT_S


def _open_body(call: Call, files: ExitStack) -> BufferedReader | None:
    """Open the file that the body of a call is in; None if it is in none."""
    body: Body | None = call.arguments.get("Body")
    return files.enter_context(body.open("rb")) if isinstance(body, Path) else None


def _digest(content: BufferedReader) -> str:
    digest = digest_of(content)
    content.seek(0)
    return digest


def _with_body(call: Call, content: BufferedReader, digest: str) -> Call:
    return call._replace(arguments={**call.arguments, "Body": content, "ContentMD5": digest})


def _definite(error: OutcomeUnknownError, call: Call) -> OutcomeUnknownError | SourceUnavailableError:
    if call.operation not in _READS:
        return error
    return only_reads(error)
