"""G12 on SQLite: nothing that is kept in a file, beside it, or shown, is a claim or a proof."""

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import fencelock
from fencelock import GuardError, Sequencer, StaleTokenError, TokenCollisionError
from fencelock.model import one_way
from tests.support.guards import RESOURCE, make_file, plain, url_of, value_in
from tests.support.helpers import wait_until

LOCK = "job"


def everything_beside(file: Path) -> bytes:
    """Return the bytes of a file and of its journals, and the names of all files and pipes."""
    paths = sorted(file.parent.rglob("*"))
    return b"".join(str(path).encode() + (path.read_bytes() if path.is_file() else b"") for path in paths)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_g12_no_claim_and_no_proof_is_in_a_file_or_beside_it(tmp_path: Path, journal: str) -> None:
    """Source and guard in one file: a lease that is held, one that ended, a break, a waiter with its pipe, a close."""
    file = make_file(tmp_path / "app.db", journal=journal)
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    guard.protect(RESOURCE)
    seen: list[bytes] = []
    secrets: list[str] = []

    def note(lease: fencelock.Lease) -> None:
        secrets.extend((lease.claim, lease.sequencer.proof))

    def wait() -> None:
        with source.lock(LOCK).acquire() as lease:
            note(lease)

    with fencelock.connect(url_of(tmp_path / "locks.db")) as source:
        first = source.lock(LOCK).acquire()
        note(first)
        with guard.transaction(first) as connection:
            connection.execute("UPDATE reports SET value = 1")
            seen.append(everything_beside(file))
        secrets.append(source.break_lock(LOCK, reason="a test").sequencer.proof)
        second = source.lock(LOCK).acquire()
        note(second)
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        wait_until(lambda: source.info(LOCK).waiters)
        seen.append(everything_beside(file))
        guard.seal(second)
        guard.close(second)
        second.release()
        waiting.join()
        seen.append(everything_beside(file))
    digest = guard.mark().digest or ""
    assert one_way(one_way(secrets[3])) == digest
    assert digest.encode() in seen[-1]
    for secret in secrets:
        assert not any(secret.encode() in one for one in seen)


def test_g12_a_frozen_holder_that_reads_its_successors_mark_writes_nothing(tmp_path: Path) -> None:
    """It has the file's marks, and its own sequencer; what it makes of them is refused, in whatever order."""
    file = make_file(tmp_path / "app.db")
    with fencelock.connect(url_of(tmp_path / "locks.db")) as source:
        frozen = source.lock(LOCK).acquire()
        guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
        guard.protect(RESOURCE)
        guard.seal(frozen)
        stale = frozen.sequencer
        source.break_lock(LOCK, reason="it is frozen")
        with source.lock(LOCK).acquire() as successor, guard.transaction(successor) as connection:
            connection.execute("UPDATE reports SET value = 'the successor'")
        mark = guard.mark()
        assert mark.digest is not None
        as_successor = replace(stale, token=mark.token)
        for stolen in (replace(as_successor, proof=mark.digest), as_successor):
            with pytest.raises(TokenCollisionError), guard.transaction(stolen):
                pass
        with pytest.raises(StaleTokenError), guard.transaction(stale):
            pass
    assert value_in(file) == "the successor"


def test_g12_a_sequencer_writes_but_does_not_close_or_release(tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db")
    with fencelock.connect(url_of(tmp_path / "locks.db")) as source:
        lease = source.lock(LOCK).acquire()
        guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
        shown = Sequencer.parse(str(lease.sequencer))
        with guard.transaction(shown) as connection:
            connection.execute("UPDATE reports SET value = 'a service'")
        with pytest.raises(GuardError, match="only the holder does"):
            guard.close(shown)
        assert not guard.mark().is_closed
        guard.close(lease)
        with pytest.raises(StaleTokenError), guard.transaction(shown):
            pass
        lease.release()
    assert value_in(file) == "a service"


def test_g12_who_can_read_a_file_can_write_it(tmp_path: Path) -> None:
    """What the page of SQLite says: a mark's digest can be presented in SQL, by whoever opens the file."""
    file = make_file(tmp_path / "app.db")
    with fencelock.connect(url_of(tmp_path / "locks.db")) as source, source.lock(LOCK).acquire() as lease:
        guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
        guard.protect(RESOURCE)
        guard.seal(lease)
    with plain(file) as connection:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("UPDATE reports SET value = 'by accident'")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO fencelock_seal (resource, token, digest) SELECT resource, token, digest FROM fencelock_mark"
        )
        connection.execute("UPDATE reports SET value = 'on purpose'")
        connection.execute("DELETE FROM fencelock_seal")
        connection.execute("COMMIT")
    assert value_in(file) == "on purpose"
