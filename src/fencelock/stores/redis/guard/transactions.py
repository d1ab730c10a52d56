"""The transactions that blocks get at Redis: for the caller's thread, and for a loop.

Promise: a block that has read stays on the connection that watches what it has read. Never: a request repeated here.
"""

from typing import Any

from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.redis.connection.client import AsyncRedisSession, RedisSession
from fencelock.stores.redis.guard.block import RedisWriteBuffer


class RedisTransaction(RedisWriteBuffer):
    """One guarded block's reads and commands, in the caller's thread. One thread at a time.

    Keys are whole keys. Answers are as redis-py reads RESP3: bytes, int, float, bool, list, dict, None. What was read
    is compared at the end: if another client has written one of its keys since, nothing of the block is written.
    """

    def __init__(self, session: RedisSession, *args: Any) -> None:
        super().__init__(*args)
        self._session = session

    def get(self, key: str | bytes) -> bytes | None:
        """Return the value of a key that holds a string; None if it does not exist."""
        return self.read("GET", key)  # type: ignore[no-any-return]

    def read(self, command: str, *arguments: str | bytes | float) -> Any:
        """Return the answer to a command that only reads, such as `HGETALL`."""
        return run_generator(self._read(command, arguments), self._session.send)


class AsyncRedisTransaction(RedisWriteBuffer):
    """The same for a task: reads are awaited; `execute` is not, because commands are kept until the block's end."""

    def __init__(self, session: AsyncRedisSession, *args: Any) -> None:
        super().__init__(*args)
        self._session = session

    async def get(self, key: str | bytes) -> bytes | None:
        """Return the value of a key that holds a string; None if it does not exist."""
        return await self.read("GET", key)  # type: ignore[no-any-return]

    async def read(self, command: str, *arguments: str | bytes | float) -> Any:
        """Wait for the answer to a command that only reads, and return it."""
        return await run_generator_async(self._read(command, arguments), self._session.send)
