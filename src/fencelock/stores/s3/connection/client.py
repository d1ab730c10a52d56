"""One process's way to a bucket: the clients of `stores/aws`, which get the contents of the file that a call names.

Promise: an error of a request that only reads is definite. Never: a request sent twice.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.aws.clients import AwsSession, Call
from fencelock.stores.aws.url import AwsConnectionInfo
from fencelock.stores.s3.connection.calls import Asking, Body, Result

REQUEST_TIMEOUT_S = 10.0
"""How long a request about a manifest may take, or about another small object."""
DATA_TIMEOUT_S = 300.0
"""How long a request for the value of a key may take, which may have gigabytes."""
_SMALL_BYTES = 2**20
_READS = {"get_object", "head_object", "list_objects_v2", "get_bucket_lifecycle_configuration"}


class S3Client:
    """Sends the calls of generators, from any thread and any loop."""

    def __init__(self, info: AwsConnectionInfo) -> None:
        self._session = AwsSession(info)

    def run(self, asking: Asking[Result], timeout_s: float = REQUEST_TIMEOUT_S) -> Result:
        """Run the generator to its end, in the caller's thread."""
        return run_generator(asking, lambda call: self._send(call, timeout_s))

    async def run_async(self, asking: Asking[Result], timeout_s: float = REQUEST_TIMEOUT_S) -> Result:
        """Run the generator to its end on the running loop."""

        async def send(call: Call) -> Any:
            return await self._send_async(call, timeout_s)

        return await run_generator_async(asking, send)

    def _send(self, call: Call, timeout_s: float) -> Any:
        try:
            with ExitStack() as files:
                return self._session.connect(_enough_s(call, timeout_s)).call(_with_file(call, files))
        except OutcomeUnknownError as error:
            raise _definite(error, call) from error

    async def _send_async(self, call: Call, timeout_s: float) -> Any:
        try:
            with ExitStack() as files:
                return await self._session.connect_async(_enough_s(call, timeout_s)).call(_with_file(call, files))
        except OutcomeUnknownError as error:
            raise _definite(error, call) from error


def _enough_s(call: Call, timeout_s: float) -> float:
    body: Body = call.arguments.get("Body", b"")
    is_small = isinstance(body, bytes) and len(body) <= _SMALL_BYTES
    return timeout_s if is_small else DATA_TIMEOUT_S


def _with_file(call: Call, files: ExitStack) -> Call:
    """Return the call with the file open that its body is in, if it is in one."""
    body = call.arguments.get("Body")
    if not isinstance(body, Path):
        return call
    return call._replace(arguments={**call.arguments, "Body": files.enter_context(body.open("rb"))})


def _definite(error: OutcomeUnknownError, call: Call) -> OutcomeUnknownError | SourceUnavailableError:
    if call.operation not in _READS:
        return error
    return SourceUnavailableError(f"{error}; the request only reads, so nothing was done. Try again")
