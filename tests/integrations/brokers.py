"""Producers and consumers of NATS as real processes, and the table that their messages change.

A handler, or a producer, names its points with `at`. In a process of its own it stops at one of them, where the test
freezes or kills it; in the test's process it runs through.
"""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, TypeVar

import nats
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo

import fencelock
from tests.process.actors import Actor, Stage
from tests.support.helpers import wait_until

WORKERS = "workers"
"""The durable consumer of the stream, whose messages all processes share."""
SETUP = """
import asyncio, sqlite3
from contextlib import closing
import nats
from fencelock.messages import from_headers, to_headers

FILE, NATS_URL, STREAM = SETTINGS

def guard_of(name):
    return fencelock.guard(f"sqlite:///{FILE}", resource=name, lock=name)

def own_connection():
    return closing(sqlite3.connect(FILE, isolation_level=None))

def amount_in(connection):
    return connection.execute("SELECT amount FROM stock").fetchone()[0]
"""
PRODUCER = """
async def publish(text, headers):
    client = await nats.connect(NATS_URL)
    await client.jetstream(timeout=30).publish(STREAM, text.encode(), headers=headers, stream=STREAM)
    await client.close()

def produce(sold):
    lease = source.lock("planner").acquire(timeout=30)
    guard_of("planner").seal(lease)
    with own_connection() as connection: amount = amount_in(connection)
    headers = to_headers(lease)
    at("read")
    asyncio.run(publish(str(amount - sold), headers))
    return lease
"""
CONSUMER = """
async def consume():
    client = await nats.connect(NATS_URL)
    pull = await client.jetstream(timeout=30).pull_subscribe_bind(durable="workers", stream=STREAM)
    (message,) = await pull.fetch(1, timeout=30)
    try:
        handle(message)
    except fencelock.FencelockError as error:
        outcome = type(error).__name__
        if outcome == "StaleTokenError": await message.term()
        if outcome == "AlreadyDoneError": await message.ack_sync(timeout=30)
    else:
        at("committed")
        outcome = "done"
        await message.ack_sync(timeout=30)
    await client.close()
    return [outcome, message.metadata.num_delivered]
"""
STOPPING = """
def at(point):
    if point == STOP: say(point); hear()
"""

Value = TypeVar("Value")


class Traffic:
    """A stream of its own on a shared server, the guarded table, and the processes that use both."""

    def __init__(self, stage: Stage, source: fencelock.Source, url: str, stream: str) -> None:
        self.file = stage.path.with_name("app.db")
        self._stage = stage
        self._source = source
        self._url = url
        self._stream = stream
        with closing(sqlite3.connect(self.file)) as connection, connection:
            connection.execute("CREATE TABLE stock (amount INTEGER NOT NULL)")
            connection.execute("INSERT INTO stock VALUES (100)")
        self.ask(lambda stream: stream.add_stream(name=self._stream, subjects=[self._stream]))

    def ask(self, question: Callable[[JetStreamContext], Awaitable[Value]]) -> Value:
        """Return the server's answer, over a connection of its own."""

        async def answer() -> Value:
            client = await nats.connect(self._url)
            try:
                return await question(client.jetstream(timeout=30))
            finally:
                await client.close()

        return asyncio.run(answer())

    def deliver(self, *, ack_wait_s: float) -> None:
        """Deliver each message to one consumer, and again after `ack_wait_s` without an acknowledgement."""
        settings = ConsumerConfig(durable_name=WORKERS, ack_policy="explicit", ack_wait=ack_wait_s)
        self.ask(lambda stream: stream.add_consumer(self._stream, settings))

    def publish(self, text: str, headers: dict[str, str] | None = None) -> None:
        """Send a message from the test."""
        self.ask(lambda stream: stream.publish(self._stream, text.encode(), headers=headers, stream=self._stream))

    def _setup(self) -> str:
        return SETUP.replace("SETTINGS", json.dumps([str(self.file), self._url, self._stream]))

    def stopping(self, script: str, call: str, stop: str) -> Actor:
        """Start a process that makes one call, says its result, and stops at one point: it has reached that."""
        actor = self._stage.actor(f"{self._setup()}STOP = {stop!r}\n{STOPPING}{script}\nsay({call})\nhear()")
        assert actor.hear() == stop
        return actor

    def here(self, script: str, call: str) -> Any:
        """Return the result of the same call, made in this process without a stop."""
        names: dict[str, Any] = {"fencelock": fencelock, "source": self._source, "at": lambda point: None}
        exec(self._setup() + script, names)  # noqa: S102 - the scripts above, and the test's handler
        return eval(call, names)  # noqa: S307

    def stopping_consumer(self, handler: str, stop: str) -> Actor:
        """Start a consumer of one message, and return it when its handler has reached the point."""
        return self.stopping(handler + CONSUMER, "asyncio.run(consume())", stop)

    def consume(self, handler: str) -> Any:
        """Take one message: return how that ended, and how often the message has been delivered."""
        return self.here(handler + CONSUMER, "asyncio.run(consume())")

    def produce(self, sold: int) -> fencelock.Lease:
        """Send what is left after a sale, as the planner; return its lease, which is still held."""
        lease: fencelock.Lease = self.here(PRODUCER, f"produce({sold})")
        return lease

    def end_lease(self, lock: str) -> None:
        """End a lease whose holder is frozen or dead, without waiting for its ttl."""
        self._source.break_lock(lock, reason="as if it had expired")

    def amount(self) -> int:
        """Return what the table says."""
        with closing(sqlite3.connect(self.file)) as connection:
            return int(connection.execute("SELECT amount FROM stock").fetchone()[0])

    def wait_until_all_is_acknowledged(self) -> None:
        """Wait until the server has nothing more to deliver, now or later."""

        def is_empty() -> bool:
            found: ConsumerInfo = self.ask(lambda stream: stream.consumer_info(self._stream, WORKERS))
            return found.num_pending == 0 and found.num_ack_pending == 0

        wait_until(is_empty)
