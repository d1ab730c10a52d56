"""What only PostgreSQL has at its isolation levels: old snapshots, seals in the caller's transaction, conflicts.

No step is timed: one that has to wait runs in a thread, and the next is taken when the server says that it waits.
"""

import psycopg
import pytest
from psycopg.errors import SerializationFailure

from fencelock import GuardError, SourceUnavailableError
from fencelock.stores.postgres.guard import codec as guard_codec
from tests.sql.guarded import Guarded, write
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, sequencer

LOOKS_BACK = ["repeatable read", "serializable"]


# --- G2: a snapshot from before the raise ---------------------------------------------------------
def look(native: psycopg.Connection) -> None:
    """Begin, and have the transaction's snapshot taken."""
    native.execute("BEGIN")
    native.execute("SELECT * FROM reports").fetchall()


@pytest.mark.parametrize("token", [5, 6])
def test_g2_a_snapshot_older_than_the_raise_is_refused(guarded: Guarded, level: str, token: int) -> None:
    """By the old holder's token, and by the new one's: it would not see what the old holder has committed meanwhile."""
    guarded.sealed(5)
    with guarded.client(level) as native:
        look(native)
        guarded.sealed(6)
        if level == "read committed" and token == 6:
            guarded.present(native, token)
            return
        with pytest.raises(psycopg.Error) as caught:
            guarded.present(native, token)
    assert caught.value.sqlstate == ("FL002" if level == "read committed" else "40001")


@pytest.mark.parametrize("old", LOOKS_BACK)
def test_g2_a_check_on_an_old_snapshot_says_what_to_do(guarded: Guarded, old: str) -> None:
    guarded.sealed(5)
    with guarded.client(old) as native:
        look(native)
        lease = guarded.sealed(6)
        with pytest.raises(GuardError, match=r"as it was before a mark was raised.*start it again"):
            guarded.guard().check(lease, connection=native)
        native.execute("ROLLBACK")
        look(native)
        guarded.guard().check(lease, connection=native)


@pytest.mark.parametrize("old", LOOKS_BACK)
def test_g2_a_first_mark_that_is_younger_than_the_snapshot_is_noticed(guarded: Guarded, old: str) -> None:
    with guarded.client(old) as native:
        look(native)
        lease = HandmadeLease(5)
        with guarded.client(old) as other:
            look(other)
            with pytest.raises(GuardError, match=r"call guard\.seal\(lease\) before you begin"):
                guarded.guard("new").check(lease, connection=other)
        guarded.guard("new").seal(lease)
        with pytest.raises(GuardError, match=r"as it was before a mark was raised"):
            guarded.guard("new").check(lease, connection=native)
    assert [mark.lock for mark in guarded.guard("new").marks().values()] == [LOCK]


@pytest.mark.parametrize("old", LOOKS_BACK)
def test_g2_a_mark_is_not_raised_in_a_transaction_that_looks_back(guarded: Guarded, old: str) -> None:
    with guarded.client(old) as native:
        native.execute("BEGIN")
        with pytest.raises(GuardError, match="before you begin it"):
            guarded.guard().seal(HandmadeLease(5), connection=native)
        native.execute("ROLLBACK")
        native.execute("BEGIN")
        with pytest.raises(psycopg.Error, match="a seal needs READ COMMITTED") as caught:
            native.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(5)), RESOURCE))
        assert caught.value.sqlstate == "FL006"
    assert guarded.guard().mark().token == 0


# --- seals in the caller's own transaction --------------------------------------------------------
def test_g2_at_read_committed_the_callers_transaction_may_seal(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    with guarded.client() as native:
        native.execute("BEGIN")
        guard.seal(lease, connection=native)
        with guard.check(lease, connection=native):
            write(native, "mine")
        assert guard.mark().token == 0, "nobody else sees it yet"
        native.execute("COMMIT")
    assert (guard.mark().token, guarded.value()) == (5, "mine")


def test_g2_a_seal_that_the_caller_rolls_back_is_made_again(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    with guarded.client() as native:
        for end in ("ROLLBACK", "COMMIT"):
            native.execute("BEGIN")
            guard.seal(lease, connection=native)
            native.execute(end)
    assert guard.mark().token == 5
    with guard.transaction(lease) as own:
        write(own, "then as ever")


def test_g4_a_seals_commit_is_flushed_whatever_the_session_wants(guarded: Guarded) -> None:
    with guarded.client() as native:
        native.execute("SET synchronous_commit = off")
        native.execute("BEGIN")
        native.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(5)), RESOURCE))
        assert native.execute("SHOW synchronous_commit").fetchone() == ("on",)
        native.execute("COMMIT")
        assert native.execute("SHOW synchronous_commit").fetchone() == ("off",)
        native.execute("BEGIN")
        native.execute("SET LOCAL synchronous_commit = remote_write")
        native.execute("SELECT fencelock.seal(%s, %s)", (str(sequencer(6)), RESOURCE))
        assert native.execute("SHOW synchronous_commit").fetchone() == ("remote_write",)


# --- conflicts that are the user's own ------------------------------------------------------------
def test_a_conflict_at_the_end_of_a_block_is_psycopgs_own_error(guarded: Guarded) -> None:
    lease = guarded.sealed(5)
    guard = guarded.guard_at("serializable")
    with guarded.database.connect() as native, native.transaction():
        guarded.present(native, 5)
        native.execute("INSERT INTO reports VALUES (2, 'second')")

    def skew() -> None:
        with guard.transaction(lease) as own:
            own.execute("SELECT sum(length(value)) FROM reports").fetchall()
            with guarded.client("serializable") as other:
                other.execute("BEGIN")
                guarded.present(other, 5)
                other.execute("SELECT sum(length(value)) FROM reports").fetchall()
                write(other, "other")
                write(own, "own", 2)
                other.execute("COMMIT")

    with pytest.raises(SerializationFailure):
        skew()
    assert guarded.value() == "other"
    with guard.transaction(lease) as own:
        write(own, "again")


def test_g3_a_seal_that_gives_up_leaves_no_session_that_waits(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not see that a client has gone whose session waits; each attempt would leave one more."""
    monkeypatch.setattr(guard_codec, "WAITING_MS", 50)
    guarded.sealed(5)
    with guarded.client() as native, native.transaction():
        guarded.present(native, 5)
        for setting in ("0", "1min", "10ms"):
            guard = guarded.guard(options=f"-c lock_timeout={setting}")
            with pytest.raises(SourceUnavailableError, match="open transaction holds the lock") as caught:
                guard.seal(HandmadeLease(6))
            assert caught.value.definite
        assert guarded.sql.blocked(guarded.database) == 0
    guarded.guard().seal(HandmadeLease(6))
