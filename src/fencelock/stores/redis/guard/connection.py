"""A guard's connection to Redis, and the transactions that blocks get: for the caller's thread, and for a loop.

Promise: both send the requests of `codec.py` and `block.py`, and nothing else. A block that has read stays on the
connection that watches what it has read.
Never: a request repeated that may have been executed.
"""

from typing import Any

from fencelock.errors import GuardError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.redis.connection.client import AsyncRedisSession, RedisClient, RedisSession, RedisSessionBase
from fencelock.stores.redis.guard.block import RedisWriteBuffer, Shapes
from fencelock.stores.redis.guard.codec import RedisGuardCodec, RedisGuardLayout


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


class RedisGuardConnectionBase:
    """What both kinds of connection share."""

    def __init__(self, session: RedisSessionBase, shapes: Shapes, transaction_type: type[Any]) -> None:
        self._session = session
        info = session.client.info
        self._codec = RedisGuardCodec(
            info, lambda comparisons: transaction_type(session, RedisGuardLayout(info), shapes, comparisons)
        )

    @property
    def native(self) -> Any:
        """The object that `guard.transaction` yields."""
        return self._codec.work

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return None: an error that leaves a block is a FencelockError already, or the user's own."""
        return None

    def close(self) -> None:
        """Discard what is pending, and give the connection to the server back."""
        self._codec.forget()
        self._session.release()


class RedisGuardConnection(RedisGuardConnectionBase):
    """Answers a guard's requests, for one thread at a time."""

    def __init__(self, client: RedisClient, shapes: Shapes) -> None:
        self._sender = RedisSession(client)
        super().__init__(self._sender, shapes, RedisTransaction)

    def perform(self, request: Any) -> Any:
        """Answer one request; after a failure nothing is pending."""
        try:
            return run_generator(self._codec.operations(request), self._sender.send)
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        """Discard what is pending, and what is watched."""
        self.close()


class AsyncRedisGuardConnection(RedisGuardConnectionBase):
    """Answers a guard's requests, for one task at a time."""

    def __init__(self, client: RedisClient, shapes: Shapes) -> None:
        self._sender = AsyncRedisSession(client)
        super().__init__(self._sender, shapes, AsyncRedisTransaction)

    async def perform(self, request: Any) -> Any:
        """Answer one request; after a failure nothing is pending."""
        try:
            return await run_generator_async(self._codec.operations(request), self._sender.send)
        except BaseException:
            await self.rollback()
            raise

    async def rollback(self) -> None:
        """Discard what is pending, and what is watched."""
        self.close()
