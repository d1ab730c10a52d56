"""The rules G1, G2, G3, G5 and G7 on a SQLite file: what a guard admits, and when."""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

import fencelock
from fencelock import (
    Event,
    GuardError,
    Hooks,
    Mark,
    StaleTokenError,
    TokenCollisionError,
    WrongLockError,
)
from fencelock.model import one_way
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection
from tests.support.guards import (
    LOCK,
    RESOURCE,
    HandmadeLease,
    Opener,
    ask,
    claim_of,
    fail,
    make_file,
    plain,
    sequencer,
    url_of,
    value_in,
    write,
)

pytestmark = pytest.mark.reduced


def test_guards_of_many_entities_share_their_connections_hooks_and_independence(file: Path) -> None:
    """Each entity has its own mark and lock; a thousand guards that are kept have the connection of one."""
    seen: list[Event] = []
    hooks = Hooks(on_sealed=seen.append)
    guard = fencelock.guard(url_of(file), resource="orders", lock="orders", independent=True, hooks=hooks)
    entities = [guard.for_resource(f"order:{number}", lock=f"lock:{number}") for number in range(3)]
    for entity in entities:
        write(entity, HandmadeLease(5, lock=entity.lock), 7)
    opened = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # Another thread has closed it.
            opened.append(os.readlink(f"/proc/self/fd/{name}"))
    assert opened.count(str(file)) == 1
    assert [event.resource for event in seen] == ["order:0", "order:1", "order:2"]
    both = HandmadeLease(6, lock="lock:0")
    with entities[0].transaction(both):
        pass
    entities[0].for_resource("after a read", lock="lock:0").seal(both)
    with pytest.raises(WrongLockError):
        entities[1].seal(both)


# --- G1: admit -----------------------------------------------------------------------------------------------------
def test_g1_a_higher_token_is_admitted_and_raises_the_mark(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    assert guard.mark() == Mark(RESOURCE, LOCK, 0)
    write(guard, HandmadeLease(5), "five")
    write(guard, HandmadeLease(9), "nine")
    assert value_in(file) == "nine"
    assert guard.mark() == Mark(RESOURCE, LOCK, 9, "source", "history", sequencer(9).digest)


def test_g1_a_holder_writes_as_often_as_it_wants(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    for value in range(3):
        write(guard, lease, value)
        assert value_in(file) == value


def test_g1_a_lower_token_is_stale_with_both_numbers(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(9))
    with pytest.raises(StaleTokenError, match=r"refuses token 5 .* its mark is 9") as caught:
        write(guard, HandmadeLease(5))
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (5, 9, RESOURCE)
    assert caught.value.definite
    assert value_in(file) == 0


def test_g1_a_holder_that_was_overtaken_is_stale_in_its_next_transaction(open_guard: Opener, file: Path) -> None:
    guard, old = open_guard(file), HandmadeLease(5)
    write(guard, old, "old")
    guard.seal(HandmadeLease(6))
    with pytest.raises(StaleTokenError):
        write(guard, old, "too late")
    assert value_in(file) == "old"


@pytest.mark.parametrize("changes", [{"claim": "another"}, {"history_id": "another"}])
def test_g1_an_equal_token_of_another_claim_or_history_is_a_collision(
    open_guard: Opener, file: Path, changes: dict[str, str]
) -> None:
    guard = open_guard(file)
    write(guard, HandmadeLease(5), "first")
    with pytest.raises(TokenCollisionError, match="token 5"):
        write(guard, HandmadeLease(5, **changes), "second")
    assert value_in(file) == "first"


def test_g12_no_message_and_no_repr_shows_a_claim_or_a_proof(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    with pytest.raises(TokenCollisionError) as caught:
        guard.seal(HandmadeLease(5, claim="another-claim"))
    for secret in (claim_of(5), sequencer(5).proof, "another-claim", one_way("another-claim")):
        assert secret not in f"{guard.mark()!r} {caught.value}"


# --- G2: seal first ------------------------------------------------------------------------------------------------
def test_g2_the_seal_is_committed_before_the_users_transaction_begins(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    with guard.transaction(HandmadeLease(5)):
        assert ask(file, "SELECT token FROM fencelock_mark") == [(5,)]


def test_g2_the_seal_stays_when_the_users_transaction_fails(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    with pytest.raises(ZeroDivisionError):
        write(guard, HandmadeLease(5), then=fail)
    assert (value_in(file), guard.mark().token) == (0, 5)


def test_g2_an_old_write_cannot_land_between_the_new_holders_read_and_its_first_write(
    open_guard: Opener, file: Path
) -> None:
    """If only the first write raised the mark, the old holder's increment would be accepted here, and lost."""
    guard, old, new = open_guard(file), HandmadeLease(1), HandmadeLease(2)
    write(guard, old, 10)
    with guard.transaction(new) as connection:
        seen = connection.execute("SELECT value FROM reports").fetchone()[0]
    with pytest.raises(StaleTokenError):
        write(guard, old, 11)
    write(guard, new, seen + 1)
    assert value_in(file) == 11


def test_g2_several_resources_are_sealed_together_before_the_first_read(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "orders", "stock")
    guard = open_guard(file, resources=["orders", "stock"])
    with guard.transaction(HandmadeLease(5)):
        assert ask(file, "SELECT resource, token FROM fencelock_mark ORDER BY 1") == [("orders", 5), ("stock", 5)]
    assert {name: mark.token for name, mark in guard.marks().items()} == {"orders": 5, "stock": 5}


def test_g2_if_one_resource_refuses_none_is_sealed(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "orders", "stock")
    open_guard(file, resource="stock").seal(HandmadeLease(9))
    both = open_guard(file, resources=["orders", "stock"])
    with pytest.raises(StaleTokenError):
        both.seal(HandmadeLease(5))
    assert {name: mark.token for name, mark in both.marks().items()} == {"orders": 0, "stock": 9}


def test_g2_a_guard_opened_after_another_was_read_is_refused(open_guard: Opener, tmp_path: Path) -> None:
    orders = open_guard(make_file(tmp_path / "orders.db"), resource="orders")
    stock = open_guard(make_file(tmp_path / "stock.db"), resource="stock")
    lease = HandmadeLease(5)
    with orders.transaction(lease):
        pass
    for attempt in (stock.seal, lambda lease: write(stock, lease)):
        with pytest.raises(GuardError, match="independent=True"):
            attempt(lease)
    assert stock.mark().token == 0


def test_g2_sealing_every_guard_first_is_fine(open_guard: Opener, tmp_path: Path) -> None:
    orders = open_guard(make_file(tmp_path / "orders.db"), resource="orders")
    stock = open_guard(make_file(tmp_path / "stock.db"), resource="stock")
    lease = HandmadeLease(5)
    orders.seal(lease)
    stock.seal(lease)
    write(orders, lease)
    write(stock, lease)


def test_g2_an_independent_guard_may_be_opened_late(open_guard: Opener, tmp_path: Path) -> None:
    lease = HandmadeLease(5)
    write(open_guard(make_file(tmp_path / "orders.db"), resource="orders"), lease)
    write(open_guard(make_file(tmp_path / "stock.db"), resource="stock", independent=True), lease)
    assert value_in(tmp_path / "stock.db") == 1


def test_g2_a_read_that_begins_while_another_guard_is_sealing_makes_that_seal_late(tmp_path: Path) -> None:
    """Another thread of the tenure reads from one resource while this thread commits the seal of a second one."""
    lease = HandmadeLease(5)
    stock = fencelock.guard(
        url_of(make_file(tmp_path / "stock.db")), resource="stock", lock=LOCK, hooks=Hooks(on_sealed=lambda _: None)
    )
    with pytest.MonkeyPatch.context() as patch:
        commit = SQLiteBlockConnection.commit

        def read_meanwhile(database: SQLiteBlockConnection) -> None:
            lease.tenure.has_read = True
            commit(database)

        patch.setattr(SQLiteBlockConnection, "commit", read_meanwhile)
        with pytest.raises(GuardError, match="independent=True"):
            stock.seal(lease)
    assert not lease.tenure.sealed


def test_g2_a_seal_is_made_once_per_tenure(open_guard: Opener, file: Path) -> None:
    events: list[Event] = []
    guard, lease = open_guard(file, hooks=Hooks(on_sealed=events.append)), HandmadeLease(5)
    guard.seal(lease)
    write(guard, lease)
    write(guard, lease)
    assert events == [Event("sealed", LOCK, token=5, resource=RESOURCE)]


# --- G3: atomic ----------------------------------------------------------------------------------------------------
def test_g3_the_mark_cannot_be_raised_while_a_guarded_transaction_is_open(file: Path) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    with guard.transaction(HandmadeLease(5)) as connection:
        connection.execute("UPDATE reports SET value = 'mine'")
        with plain(file, timeout=0) as other, pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    assert value_in(file) == "mine"


def test_g3_an_exception_undoes_the_block_and_passes(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    with pytest.raises(ZeroDivisionError) as caught:
        write(guard, HandmadeLease(5), then=fail)
    assert caught.value.__cause__ is None
    assert value_in(file) == 0


# --- G5: scope -----------------------------------------------------------------------------------------------------
def test_g5_a_lease_of_another_lock_is_refused(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    with pytest.raises(WrongLockError, match="other-lock"):
        write(guard, HandmadeLease(5, lock="other-lock"))


def test_g5_a_lease_of_another_lock_is_refused_before_anything_is_opened(open_guard: Opener, tmp_path: Path) -> None:
    guard, lease = open_guard(tmp_path / "nosuch.db"), HandmadeLease(5, lock="other-lock")
    for attempt in (guard.seal, guard.close, lambda lease: write(guard, lease)):
        with pytest.raises(WrongLockError, match="other-lock"):
            attempt(lease)


def test_g5_a_guard_opened_for_another_lock_than_the_resources_is_refused(open_guard: Opener, file: Path) -> None:
    open_guard(file).protect("reports")
    other = open_guard(file, lock="other-lock")
    lease = HandmadeLease(5, lock="other-lock")
    for attempt in (other.seal, other.close, lambda lease: write(other, lease)):
        with pytest.raises(WrongLockError, match="nightly-report"):
            attempt(lease)
    assert value_in(file) == 0


def test_g5_the_first_seal_binds_the_resource_to_its_source(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    with pytest.raises(WrongLockError, match="bound to source source; the sequencer is of source elsewhere"):
        guard.seal(HandmadeLease(99, source_id="elsewhere"))


def test_g5_one_resource_has_one_mark_whatever_row_is_written(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports", "lines")
    guard, old = open_guard(file), HandmadeLease(5)
    guard.protect("reports", "lines")
    write(guard, old, 1, table="reports")
    write(guard, HandmadeLease(6), 2, table="reports")
    with pytest.raises(StaleTokenError):
        write(guard, old, 3, table="lines")


# --- G7 ------------------------------------------------------------------------------------------------------------
def test_g7_a_refusal_says_that_earlier_unacknowledged_writes_are_unknown(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(6))
    with pytest.raises(StaleTokenError, match="earlier writes without an answer are unknown until read"):
        write(guard, HandmadeLease(5))
