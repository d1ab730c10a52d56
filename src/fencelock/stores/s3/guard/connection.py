"""A guard's connection to S3, and the transactions that blocks get: for the caller's thread, and for a loop.

Promise: both send the operations of `codec.py`, and nothing else. Never: a request repeated here.
"""

from collections.abc import Callable
from typing import Any

from fencelock.errors import GuardError
from fencelock.stores.s3.connection.client import DATA_TIMEOUT_S, S3Client
from fencelock.stores.s3.guard.block import S3WriteBuffer
from fencelock.stores.s3.guard.codec import S3GuardCodec
from fencelock.stores.s3.guard.manifest import S3Layout


class S3Transaction(S3WriteBuffer):
    """One guarded block's reads and writes, in the caller's thread. One thread at a time.

    A key is text, with single slashes between its parts, and has bytes as its value. What the block reads is what the
    resource consisted of when the block began. If another block of the same lease has changed what this one has read,
    nothing of this block is written.
    """

    def __init__(self, client: S3Client, *args: Any) -> None:
        super().__init__(*args)
        self._client = client

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if it does not exist. For a large one see `url`."""
        return self._client.run(self._get(key), DATA_TIMEOUT_S)


class AsyncS3Transaction(S3WriteBuffer):
    """The same for a task: `get` is awaited, and nothing else, because nothing else asks S3 before the block's end."""

    def __init__(self, client: S3Client, *args: Any) -> None:
        super().__init__(*args)
        self._client = client

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if it does not exist. For a large one see `url`."""
        return await self._client.run_async(self._get(key), DATA_TIMEOUT_S)


class S3GuardConnectionBase:
    """What both kinds of connection share."""

    def __init__(
        self, url: str, bucket: str, layout: S3Layout, client: S3Client, make_transaction: Callable[..., Any]
    ) -> None:
        self._client = client
        self.codec = S3GuardCodec(url, bucket, layout, lambda *args: make_transaction(client, bucket, layout, *args))

    @property
    def native(self) -> Any:
        """The object that `guard.transaction` yields."""
        return self.codec.work

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return None: an error that leaves a block is a FencelockError already, or the user's own."""
        return None

    def close(self) -> None:
        """Discard the pending writes."""
        self.codec.forget()


class S3GuardConnection(S3GuardConnectionBase):
    """Answers a guard's requests, for one thread at a time."""

    def __init__(self, url: str, bucket: str, layout: S3Layout, client: S3Client) -> None:
        super().__init__(url, bucket, layout, client, S3Transaction)

    def perform(self, request: Any) -> Any:
        """Answer one request; after a failure nothing is pending."""
        try:
            return self._client.run(self.codec.operations(request))
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        """Discard the pending writes."""
        self.codec.forget()


class AsyncS3GuardConnection(S3GuardConnectionBase):
    """Answers a guard's requests, for one task at a time."""

    def __init__(self, url: str, bucket: str, layout: S3Layout, client: S3Client) -> None:
        super().__init__(url, bucket, layout, client, AsyncS3Transaction)

    async def perform(self, request: Any) -> Any:
        """Answer one request; after a failure nothing is pending."""
        try:
            return await self._client.run_async(self.codec.operations(request))
        except BaseException:
            await self.rollback()
            raise

    async def rollback(self) -> None:
        """Discard the pending writes."""
        self.codec.forget()
