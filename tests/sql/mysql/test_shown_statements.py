"""G12 on MySQL: what other sessions see of a holder's statements lets nobody release or write.

The tests look with the right to see every session: while a statement is inside a routine, the server shows it to the
routine's owner and to accounts with that right, and before and after it to each session of the holder's account.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

import fencelock
import fencelock.aio
from fencelock.model import digest_of_claim, draw_claim, one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores.mysql.connection.masks import SharedMask, mask
from fencelock.stores.mysql.connection.wire import decode_text
from tests.sql.clients import SqlClient
from tests.sql.dialect import install, run
from tests.sql.guarded import Guarded, Step, write
from tests.sql.mysql.dialect import code_of
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, sequencer
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide
SHOWN = "SELECT info FROM information_schema.processlist WHERE id <> connection_id()"


@pytest.fixture
def worker(guarded: Guarded) -> Iterator[str]:
    """An account with a worker's rights to both halves."""
    database, name = guarded.database, f"worker_{guarded.database.name}"
    install(database.url())
    database.rows(f"CREATE USER {name}")
    database.rows(f"GRANT EXECUTE ON {database.name}.* TO {name}")
    database.rows(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database.name}.reports TO {name}")
    guarded.guard().grant(name)
    yield name
    database.rows(f"DROP USER {name}")


@contextmanager
def watching(guarded: Guarded) -> Iterator[list[str]]:
    """Collect the texts that another session is shown, as often as it can look."""
    seen: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        with guarded.database.connect() as native:
            while not is_over.is_set():
                seen.extend(str(text) for (text,) in run(native, SHOWN) if text)

    watcher = Step(look)
    yield seen
    is_over.set()
    watcher.end()


def shows_ours(texts: list[str]) -> bool:
    """Return whether the other session has seen a statement of fencelock's."""
    return any("fencelock_" in text for text in texts)


def show_nothing(texts: list[str], claim: str) -> None:
    """Assert that the texts show neither the claim nor its proof, in plain or as a literal of digits."""
    whole = "\n".join(texts).lower()
    assert "fencelock_" in whole, "the other session sees this one's statements"
    for secret in (claim, one_way(claim)):
        assert secret not in whole
        assert secret.encode().hex() not in whole


@pytest.mark.parametrize("kind", ["acquire", "release", "renew", "check", "break"])
def test_g12_a_statement_that_waits_at_the_source_shows_no_secret(guarded: Guarded, worker: str, kind: str) -> None:
    database, claim = guarded.database, draw_claim()
    client = SqlClient(database.url(user=worker))
    granted = client.acquire("lock", claim)
    asked = {
        "acquire": ask.Acquire("lock", claim, "worker", 5000, 2**50, True),
        "release": ask.Release("lock", claim),
        "renew": ask.Renew((("lock", claim), ("other", draw_claim()))),
        "check": ask.Check("lock", granted.history_id, one_way(claim)),
        "break": ask.Break("lock", claim, "worker", "a test"),
    }[kind]
    with watching(guarded) as seen, database.connect() as holding:
        run(holding, "START TRANSACTION")
        run(holding, "SELECT 1 FROM fencelock_lock FOR UPDATE")
        waiting = Step(client.ask, asked)
        if kind != "check":
            guarded.wait_for_anybody()
        run(holding, "COMMIT")
        waiting.end()
        wait_until(lambda: client.ask(asked) is not None and shows_ours(seen))
    show_nothing(seen, claim)
    client.close()


def guarded_work(guarded: Guarded, url: str, step: str, lease: Any) -> Callable[[], Any]:
    """Return one step of a tenure, which waits while somebody holds the mark."""
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)

    def block() -> None:
        with guard.transaction(lease) as native:
            write(native)

    async def seal_async() -> None:
        await fencelock.aio.guard(url, resource=RESOURCE, lock=LOCK).seal(lease)

    steps = {"seal": lambda: guard.seal(lease), "block": block, "close": lambda: guard.close(lease)}
    return steps.get(step, lambda: asyncio.run(seal_async()))


@pytest.mark.parametrize("step", ["seal", "async seal", "block", "close"])
def test_g12_a_statement_that_waits_at_the_guard_shows_no_secret(guarded: Guarded, worker: str, step: str) -> None:
    database, claim = guarded.database, draw_claim()
    lease = HandmadeLease(5, claim=claim)
    url = database.url(user=worker)
    if step == "block":
        fencelock.guard(url, resource=RESOURCE, lock=LOCK).seal(lease)
    with watching(guarded) as seen, database.connect() as holding:
        run(holding, "START TRANSACTION")
        run(holding, "SELECT 1 FROM fencelock_mark FOR UPDATE")
        waiting = Step(guarded_work(guarded, url, step, lease))
        guarded.wait_for_anybody()
        wait_until(lambda: shows_ours(seen))
        run(holding, "COMMIT")
        waiting.end()
    show_nothing(seen, claim)


def test_g12_a_callers_transaction_shows_no_secret(guarded: Guarded, worker: str) -> None:
    lease = HandmadeLease(5, claim=draw_claim())
    guard = guarded.guard(user=worker)
    guard.seal(lease)

    def write_once() -> None:
        with guarded.database.connect(user=worker, autocommit=False) as native:
            run(native, "START TRANSACTION")
            with guard.check(lease, connection=native):
                write(native)
            native.commit()

    with watching(guarded) as seen:
        for _ in range(20):
            write_once()
        while not shows_ours(seen):
            write_once()
    show_nothing(seen, lease.claim)


# --- what the texts are good for ------------------------------------------------------------------
def test_g12_a_masked_secret_is_worth_nothing_to_another_session(guarded: Guarded, worker: str) -> None:
    """It repeats what it has seen, word for word."""
    database, claim = guarded.database, draw_claim()
    client = SqlClient(database.url(user=worker))
    client.acquire("lock", claim)
    lease = HandmadeLease(5, claim=draw_claim())
    guarded.guard(user=worker).seal(lease)
    shared = SharedMask()
    with database.connect(user=worker) as own, database.connect(user=worker) as other:
        [(key,)] = [row[6:] for row in run(own, "CALL fencelock_describe()")]
        release = ("CALL fencelock_release('lock', %s, 0)", mask(key, claim))
        shared.learn(*map(decode_text, run(own, "CALL fencelock_draw_mask(%s)", own.thread_id())[0]))
        masked = shared.mask(lease.sequencer.proof, own.thread_id())
        text = str(lease.sequencer).replace(lease.sequencer.proof, masked)
        for native in (own, other):
            run(native, "SET time_zone = '+00:00', tx_isolation = 'READ-COMMITTED'")
        run(other, "CALL fencelock_describe()")
        with pytest.raises(pymysql.Error, match="masked for another session"):
            run(other, *release)
        run(other, "START TRANSACTION")
        with pytest.raises(pymysql.Error, match="masked for another session") as caught:
            run(other, "CALL fencelock_present(%s, 'reports')", text)
        assert code_of(caught.value) == "FL011"
        run(other, "ROLLBACK")
        run(own, "START TRANSACTION")
        run(own, "CALL fencelock_present(%s, 'reports')", text)
        run(own, "CALL fencelock_rollback()")
        assert run(own, *release) == []
    assert not client.release("lock", claim)
    client.close()


def test_g12_what_tables_keep_is_good_for_nothing(guarded: Guarded) -> None:
    """A frozen holder that reads its successor's mark and the source's tables can neither write nor release."""
    client = SqlClient(install(guarded.database.url()))
    claim = draw_claim()
    granted = client.acquire(LOCK, claim)
    successor = sequencer(granted.token + 5, claim=claim)
    guarded.guard().seal(successor)
    digest = digest_of_claim(claim)
    assert guarded.guard().mark().digest == digest
    tables = [name for (name,) in guarded.database.rows("SHOW TABLES LIKE 'fencelock%%'")]
    kept = str([guarded.database.rows(f"SELECT * FROM {table}") for table in tables])
    assert digest in kept
    assert claim not in kept
    assert one_way(claim) not in kept
    assert not client.release(LOCK, digest)
    with guarded.database.connect() as native:
        for proof in (digest, one_way(digest)):
            run(native, "START TRANSACTION")
            with pytest.raises(pymysql.Error, match="FL003"):
                run(native, "CALL fencelock_present(%s, 'reports')", str(successor).replace(successor.proof, proof))
            run(native, "ROLLBACK")
    assert client.release(LOCK, claim)
    client.close()


def test_two_masked_secrets_of_one_key_say_nothing_of_each_other() -> None:
    key, first, second = draw_claim(), draw_claim(), draw_claim()
    masks = [mask(key, secret) for secret in (first, second, one_way(first))]
    differences = {
        int(one[32:], 16) ^ int(secret, 16) for one, secret in zip(masks, (first, second, one_way(first)), strict=True)
    }
    assert len(differences) == 3, "each has a pad of its own"
    assert mask(key, "a claim of a test") == "a claim of a test"
