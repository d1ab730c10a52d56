"""The transactions that blocks get at S3: for the caller's thread, and for a loop. Never: a request repeated here."""

from typing import Any

from fencelock.stores.s3.connection.client import DATA_TIMEOUT_S, S3Client
from fencelock.stores.s3.guard.block import S3WriteBuffer


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
