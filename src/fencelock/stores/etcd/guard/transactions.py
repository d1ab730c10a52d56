"""How a guard's requests are sent to etcd, and the transactions that blocks get: in the caller's thread, and on a loop.

Promise: if a request that only reads fails, its error is definite.
Never: a request repeated that may have been executed.
"""

from typing import Any

from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.stores.etcd.connection.client import TXN, EtcdClient
from fencelock.stores.etcd.guard.block import EtcdWriteBuffer

REQUEST_TIMEOUT_S = 5.0


class EtcdTransaction(EtcdWriteBuffer):
    """One guarded block's reads and writes, in the caller's thread. One thread at a time.

    Keys and values are str or bytes; reads return bytes. Keys are whole keys, the guard's prefix included. What was
    read is compared at the end: if another client has written it since, nothing of the block is written. Of a prefix
    that was read, the deletion of a key past the guard is not noticed.
    """

    def __init__(self, client: EtcdClient, *args: Any) -> None:
        super().__init__(*args)
        self._client = client

    def get(self, key: str | bytes) -> bytes | None:
        """Return the value of a key; None if it does not exist."""
        return self._decode_get(key, send_txn(self._client, self._encode_get(key)))

    def get_prefix(self, prefix: str | bytes) -> dict[bytes, bytes]:
        """Return the keys that begin with the prefix and their values, in the order of the keys."""
        return self._decode_get_prefix(prefix, send_txn(self._client, self._encode_get_prefix(prefix)))


class AsyncEtcdTransaction(EtcdWriteBuffer):
    """The same for a task: reads are awaited; writes are not, because they are kept until the end of the block."""

    def __init__(self, client: EtcdClient, *args: Any) -> None:
        super().__init__(*args)
        self._client = client

    async def get(self, key: str | bytes) -> bytes | None:
        """Return the value of a key; None if it does not exist."""
        return self._decode_get(key, await send_txn_async(self._client, self._encode_get(key)))

    async def get_prefix(self, prefix: str | bytes) -> dict[bytes, bytes]:
        """Return the keys that begin with the prefix and their values, in the order of the keys."""
        return self._decode_get_prefix(prefix, await send_txn_async(self._client, self._encode_get_prefix(prefix)))


def send_txn(client: EtcdClient, request: Any) -> Any:
    """Send a Txn, and return etcd's answer."""
    try:
        return client.call(TXN, request, REQUEST_TIMEOUT_S)
    except OutcomeUnknownError as error:
        raise _definite(error, request) from error


async def send_txn_async(client: EtcdClient, request: Any) -> Any:
    """Send a Txn, and wait on the loop for etcd's answer."""
    try:
        return await client.call_async(TXN, request, REQUEST_TIMEOUT_S)
    except OutcomeUnknownError as error:
        raise _definite(error, request) from error


def _definite(error: OutcomeUnknownError, request: Any) -> OutcomeUnknownError | SourceUnavailableError:
    """Return the error for a request without an answer: one that only reads has done nothing."""
    if any(not operation.HasField("request_range") for operation in request.success):
        return error
    return SourceUnavailableError(f"{error}; the request only reads, so nothing was done. Try again")
