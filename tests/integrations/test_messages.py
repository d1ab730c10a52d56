"""Messages through a real broker: a stale producer, two deliveries of one message, and consumers that freeze or die.

Each interleaving has a consumer that keeps what was acknowledged, and a plausible one that loses it.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import fencelock
from fencelock.messages import HEADER, from_headers, to_headers
from fencelock_lab.servers.nats import NatsFleet
from tests.fix_servers import fresh_name
from tests.integrations.brokers import PRODUCER, Traffic
from tests.process.actors import Stage

pytestmark = pytest.mark.process
LONG_S = 60.0
AGAIN_S = 0.2
"""After how long a message is delivered again, where a test waits for that."""


@pytest.fixture
def traffic(stage: Stage, source: fencelock.Source, nats_fleet: NatsFleet) -> Traffic:
    return Traffic(stage, source, nats_fleet.shared().url, fresh_name("stream"))


# --- a sequencer in the header fences producers -----------------------------------------------------------------------
FENCED = """
def handle(message):
    at("delivered")
    with guard_of("planner").transaction(from_headers(message.headers)) as connection:
        connection.execute("UPDATE stock SET amount = ?", (int(message.data),))
"""
COMPARING = """
def handle(message):
    sequencer = from_headers(message.headers)
    if sequencer.token < guard_of("planner").mark().token:
        raise fencelock.StaleTokenError("", token=0, mark=0, resource="")
    at("delivered")
    with own_connection() as connection:
        connection.execute("UPDATE stock SET amount = ?", (int(message.data),))
"""


def test_a_stale_producers_message_is_refused_by_the_consumers_guard(traffic: Traffic) -> None:
    traffic.deliver(ack_wait_s=LONG_S)
    stale = traffic.stopping(PRODUCER, "produce(10) and None", "read")
    stale.freeze()
    traffic.end_lease("planner")
    with traffic.produce(5):
        assert traffic.consume(FENCED) == ["done", 1]
        stale.say()
        stale.thaw()
        assert stale.hear() is None, "it was published"
        assert traffic.consume(FENCED) == ["StaleTokenError", 1]
    assert traffic.amount() == 95
    traffic.wait_until_all_is_acknowledged()


@pytest.mark.parametrize(
    ("handler", "outcome", "amount"),
    [pytest.param(FENCED, "StaleTokenError", 95, marks=pytest.mark.campaign), (COMPARING, "done", 90)],
    ids=["guard", "negative-control-that-compares-first"],
)
def test_a_consumer_frozen_between_delivery_and_write_keeps_the_successors_message(
    traffic: Traffic, handler: str, outcome: str, amount: int
) -> None:
    """The consumer that compares the header with the mark before its work loses an acknowledged message."""
    traffic.deliver(ack_wait_s=LONG_S)
    traffic.produce(10).release()
    frozen = traffic.stopping_consumer(handler, "delivered")
    frozen.freeze()
    with traffic.produce(5):
        assert traffic.consume(handler) == ["done", 1]
    assert traffic.amount() == 95
    frozen.say()
    frozen.thaw()
    assert frozen.hear() == [outcome, 1]
    assert traffic.amount() == amount


# --- a lease per delivery fences deliveries ---------------------------------------------------------------------------
LEASED = """
def handle(message):
    name = "task/" + message.headers["Nats-Msg-Id"]
    with source.lock(name, timeout=30) as lease:
        at("locked")
        with guard_of(name).transaction(SHOWN, once="message") as connection:
            connection.execute("UPDATE stock SET amount = amount + ?", (int(message.data),))
            at("written")
"""
BY_LEASE = LEASED.replace("SHOWN", "lease")
BY_SEQUENCER = LEASED.replace("SHOWN", "lease.sequencer")
WITHOUT_KEY = BY_LEASE.replace(', once="message"', "")
PRODUCERS_TOKEN = """
def handle(message):
    at("locked")
    with guard_of("planner").transaction(from_headers(message.headers)) as connection:
        connection.execute("UPDATE stock SET amount = amount + ?", (int(message.data),))
"""


TASK = "task/7"


def deliver_twice(traffic: Traffic, source: fencelock.Source, handler: str) -> tuple[list[object], list[object]]:
    """Freeze the first consumer in its handler, let the second one do the work, and wake the first: their outcomes."""
    traffic.deliver(ack_wait_s=AGAIN_S)
    with source.lock("planner") as lease:
        traffic.publish("10", {"Nats-Msg-Id": "7", **to_headers(lease)})
        first = traffic.stopping_consumer(handler, "locked")
        first.freeze()
        traffic.end_lease(TASK)
        second = traffic.consume(handler)
        first.say()
        first.thaw()
        return first.hear(), second


@pytest.mark.parametrize(
    ("handler", "refusals"),
    [
        (BY_LEASE, {"AlreadyDoneError", "LeaseLostError"}),
        (BY_SEQUENCER.replace(', once="message"', ""), {"StaleTokenError"}),
    ],
    ids=["lease", "sequencer-without-key"],
)
def test_of_a_message_delivered_again_the_frozen_first_copy_bounces(
    traffic: Traffic, source: fencelock.Source, handler: str, refusals: set[str]
) -> None:
    """Its keeper has heard of the loss, or the key refuses it; where neither is asked, the guard's mark does."""
    first, second = deliver_twice(traffic, source, handler)
    assert second == ["done", 2]
    assert first[0] in refusals
    assert traffic.amount() == 110
    traffic.wait_until_all_is_acknowledged()


def test_negative_control_with_the_producers_token_both_deliveries_are_applied(
    traffic: Traffic, source: fencelock.Source
) -> None:
    assert deliver_twice(traffic, source, PRODUCERS_TOKEN) == (["done", 1], ["done", 2])
    assert traffic.amount() == 120


@pytest.mark.parametrize(
    ("handler", "point", "outcome", "amount"),
    [
        pytest.param(BY_LEASE, "locked", "done", 110, marks=pytest.mark.campaign),
        pytest.param(BY_LEASE, "written", "done", 110, marks=pytest.mark.campaign),
        (BY_LEASE, "committed", "AlreadyDoneError", 110),
        (WITHOUT_KEY, "committed", "done", 120),
    ],
    ids=["before-the-block", "in-the-block", "before-the-acknowledgement", "negative-control-without-key"],
)
def test_a_message_whose_consumer_dies_is_delivered_again_and_takes_effect_once(
    traffic: Traffic, handler: str, point: str, outcome: str, amount: int
) -> None:
    """The dead consumer's own lease ends by its ttl. Without a key a message is applied twice."""
    traffic.deliver(ack_wait_s=AGAIN_S)
    traffic.publish("10", {"Nats-Msg-Id": "7"})
    dying = traffic.stopping_consumer(handler, point)
    dying.kill()
    traffic.end_lease(TASK)
    assert traffic.consume(handler) == [outcome, 2]
    assert traffic.amount() == amount
    traffic.wait_until_all_is_acknowledged()


# --- a seal that a failover has lost ----------------------------------------------------------------------------------
PLANNER = """
lease = source.lock("planner").acquire()
guard = fencelock.guard(hear(), resource="planner", lock="planner")
guard.seal(lease)
say(str(lease.sequencer))
hear()
try:
    guard.seal(lease)
except fencelock.GuardError as error:
    say(type(error).__name__)
"""


def checked(guard: fencelock.Guard, file: Path, headers: dict[str, str], amount: int) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as own:
        own.execute("PRAGMA foreign_keys = ON")
        own.execute("BEGIN IMMEDIATE")
        with guard.check(from_headers(headers), connection=own):
            own.execute("UPDATE stock SET amount = ?", (amount,))
        own.execute("COMMIT")


def sealing(guard: fencelock.Guard, file: Path, headers: dict[str, str], amount: int) -> None:
    with guard.transaction(from_headers(headers)) as connection:
        connection.execute("UPDATE stock SET amount = ?", (amount,))


@pytest.mark.parametrize(
    ("consume", "is_refused"), [(checked, True), (sealing, False)], ids=["check", "negative-control-that-seals-again"]
)
def test_g9_after_a_lost_seal_a_consumer_that_checks_applies_no_message_that_knows_nothing_of_it(
    stage: Stage, source: fencelock.Source, tmp_path: Path, consume: Callable[..., None], is_refused: bool
) -> None:
    """The consumer remembers nothing of the seal. Its producer does, where it has sealed for itself."""
    file = tmp_path / "app.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE stock (amount INTEGER NOT NULL)")
        connection.execute("INSERT INTO stock VALUES (100)")
    guard = fencelock.guard(f"sqlite:///{file}", resource="planner", lock="planner")
    with source.lock("planner") as old:
        guard.seal(old)
        late = to_headers(old)
    backup = shutil.copy(file, tmp_path / "backup.db")
    planner = stage.actor(PLANNER)
    planner.say(guard.url)
    headers = {HEADER: planner.hear()}
    os.replace(backup, file)
    consume(guard, file, late, 90)
    if is_refused:
        with pytest.raises(fencelock.GuardError, match="not sealed by token 2"):
            consume(guard, file, headers, 95)
        planner.say()
        assert planner.hear() == "SealLostError"
    else:
        consume(guard, file, headers, 95)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT amount FROM stock").fetchone() == (90 if is_refused else 95,)
