"""A guard's requests answered by etcd, and what blocks get there: in the caller's thread, and on a loop.

Promise: both say what `guard_speech.py` says, and nothing else. A request that only reads is definite when it fails.
Never: a request repeated that may have been done.
"""

from typing import Any

from fencelock.errors import GuardError, OutcomeUnknownError, SourceUnavailableError
from fencelock.protocol.generators import drive, drive_async
from fencelock.stores.etcd.connection.client import TXN, Client
from fencelock.stores.etcd.guard.block import Draft
from fencelock.stores.etcd.guard.codec import GuardLayout, Speech
from fencelock.stores.etcd.guard.colocated import LocksBeside

PATIENCE_S = 5.0


class EtcdTransaction(Draft):
    """One guarded block's reads and writes, in the caller's thread. One thread at a time.

    Keys and values are str or bytes; what is read is bytes. Keys are whole keys, the guard's prefix included. What was
    read is compared at the end: if another client has written it since, nothing of the block is written. Of a prefix
    that was read, a key that has been deleted since past the guard is not noticed.
    """

    def __init__(self, client: Client, *terms: Any) -> None:
        super().__init__(*terms)
        self._client = client

    def get(self, key: str | bytes) -> bytes | None:
        """Return the value of a key, None if there is none."""
        return self._got(key, answer(self._client, self._asking(key)))

    def get_prefix(self, prefix: str | bytes) -> dict[bytes, bytes]:
        """Return the keys that begin with the prefix and their values, in the order of the keys."""
        return self._got_all(prefix, answer(self._client, self._asking_all(prefix)))


class AsyncEtcdTransaction(Draft):
    """The same for a task: reads are awaited; writes are not, since they are kept until the end of the block."""

    def __init__(self, client: Client, *terms: Any) -> None:
        super().__init__(*terms)
        self._client = client

    async def get(self, key: str | bytes) -> bytes | None:
        """Return the value of a key, None if there is none."""
        return self._got(key, await answer_async(self._client, self._asking(key)))

    async def get_prefix(self, prefix: str | bytes) -> dict[bytes, bytes]:
        """Return the keys that begin with the prefix and their values, in the order of the keys."""
        return self._got_all(prefix, await answer_async(self._client, self._asking_all(prefix)))


def answer(client: Client, request: Any) -> Any:
    """Send a Txn, and return what etcd answers."""
    try:
        return client.call(TXN, request, PATIENCE_S)
    except OutcomeUnknownError as error:
        raise _definite(error, request) from error


async def answer_async(client: Client, request: Any) -> Any:
    """Send a Txn, and wait on the loop for what etcd answers."""
    try:
        return await client.call_async(TXN, request, PATIENCE_S)
    except OutcomeUnknownError as error:
        raise _definite(error, request) from error


def _definite(error: OutcomeUnknownError, request: Any) -> OutcomeUnknownError | SourceUnavailableError:
    """Return what it means that a request was not answered: nothing was done by one that only reads."""
    if any(not operation.HasField("request_range") for operation in request.success):
        return error
    return SourceUnavailableError(f"{error}; it was only to be read, so nothing was done. Try again")


class _Bearing:
    """What both kinds of connection have in common."""

    def __init__(
        self, url: str, layout: GuardLayout, locks: LocksBeside | None, client: Client, kind: type[Any]
    ) -> None:
        self._client = client
        self._speech = Speech(url, layout, locks, lambda *terms: kind(client, *terms))

    @property
    def native(self) -> Any:
        """What `guard.transaction` yields."""
        return self._speech.work

    def explain(self, error: BaseException) -> GuardError | None:
        """What leaves a block is of the tree already, or the user's own."""
        return None

    def close(self) -> None:
        """Write nothing more."""
        self._speech.forget()


class GuardConnection(_Bearing):
    """What one thread at a time asks of the guard."""

    def __init__(self, url: str, layout: GuardLayout, locks: LocksBeside | None, client: Client) -> None:
        super().__init__(url, layout, locks, client, EtcdTransaction)

    def perform(self, request: Any) -> Any:
        """Answer one request; anything but success leaves nothing to be written."""
        try:
            return drive(self._speech.talk(request), lambda trip: answer(self._client, trip))
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        """Write nothing of what was to be written."""
        self._speech.forget()


class AsyncGuardConnection(_Bearing):
    """What one task at a time asks of the guard."""

    def __init__(self, url: str, layout: GuardLayout, locks: LocksBeside | None, client: Client) -> None:
        super().__init__(url, layout, locks, client, AsyncEtcdTransaction)

    async def perform(self, request: Any) -> Any:
        """Answer one request; anything but success leaves nothing to be written."""
        try:
            return await drive_async(self._speech.talk(request), lambda trip: answer_async(self._client, trip))
        except BaseException:
            await self.rollback()
            raise

    async def rollback(self) -> None:
        """Write nothing of what was to be written."""
        self._speech.forget()
