"""The rule G15 on a SQLite file: purged marks leave a floor."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelock import OutcomeUnknownError, SealLostError, StaleTokenError
from tests.support.guards import ask, plain, url_of
from tests.support.purged_marks import PurgedMarks, Shop

pytestmark = pytest.mark.reduced


class TestPurgedMarks(PurgedMarks):
    @pytest.fixture
    def marks_url(self, file: Path) -> str:
        return url_of(file)


@pytest.fixture
def shop(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = Shop(f"sqlite:///{tmp_path / 'locks.db'}", url_of(file), monkeypatch)
    yield made
    made.source.close()


@pytest.mark.parametrize("fate", ["happened", "lost"])
def test_g15_a_purge_whose_reply_is_lost_is_repeated(shop: Shop, lost_commits: list[str], fate: str) -> None:
    token = shop.work().token
    lost_commits.append(fate)
    with pytest.raises(OutcomeUnknownError):
        shop.purge()
    assert shop.purge() == (0 if fate == "happened" else 1)
    assert (shop.marks(), shop.floor()) == ([], token)


@pytest.mark.parametrize("fate", ["happened", "lost"])
def test_g15_a_first_seal_whose_reply_is_lost_minds_the_floor(shop: Shop, lost_commits: list[str], fate: str) -> None:
    """The seal is made again. What was purged in between, with the seal itself, admits it no more."""
    with shop.acquire(2) as slow:
        shop.work(1)
        shop.purge_all()
        lost_commits.append(fate)
        with pytest.raises(StaleTokenError):
            shop.guard(2).seal(slow)
    lost_commits.append(fate)
    shop.work(2)
    assert shop.marks() == ["order:2"]


def test_g15_a_resource_that_protects_a_table_keeps_its_mark(shop: Shop) -> None:
    """And may lose it after the table is unprotected."""
    shop.guard().protect("reports", mode="observe")
    shop.work()
    assert (shop.purge(), shop.marks()) == (0, ["order:1"])
    shop.guard().unprotect("reports", reason="moved")
    shop.purge_all()


def test_g15_a_mark_of_a_lease_that_closed_it_refuses_that_lease_when_it_is_gone(shop: Shop) -> None:
    with shop.acquire() as lease:
        shop.guard().seal(lease)
        shop.guard().close(lease)
        sequencer = lease.sequencer
    shop.purge_all()
    shop.in_another_process()
    with pytest.raises(StaleTokenError):
        shop.guard().seal(sequencer)
    with shop.acquire() as closing:
        shop.guard().close(closing)
        assert shop.guard().mark().is_closed


def test_g15_a_close_after_a_purge_raises_no_mark_again(shop: Shop) -> None:
    lease = shop.acquire()
    shop.guard().seal(lease)
    shop.source.break_lock("order:1", reason="as if it had expired")
    shop.purge_all()
    with pytest.raises(SealLostError):
        shop.guard().close(lease)
    assert shop.marks() == []
    lease.release()


def test_g15_the_file_itself_keeps_marks_and_floors(shop: Shop, file: Path) -> None:
    """From a client that does not use fencelock, in any language."""
    stale = shop.work()
    with plain(file) as client, pytest.raises(sqlite3.IntegrityError, match="never deleted, except by"):
        client.execute("DELETE FROM fencelock_mark")
    shop.purge_all()
    first = (
        "INSERT INTO fencelock_mark (resource, lock, token, source_id, history_id, digest) VALUES (?, ?, ?, ?, ?, ?)"
    )
    row = ("order:1", "order:1", stale.token, stale.source_id, stale.history_id, stale.digest)
    bound = "UPDATE fencelock_mark SET source_id = ?, token = ?, digest = 'd' WHERE resource = 'without a source'"
    others = "VALUES ('me', 'floor', '', ?, ?, 'for another one (source another)')"
    with plain(file) as client:
        client.execute("INSERT INTO fencelock_mark (resource, lock) VALUES ('without a source', 'order:1')")
        client.execute(
            f"INSERT INTO fencelock_audit (who, action, resource, from_token, to_token, reason) {others}",
            (stale.token, stale.token - 1),
        )
        for statement, values in (
            (first, row),
            (first.replace("INSERT", "INSERT OR REPLACE"), row),
            (bound, (stale.source_id, stale.token)),
            ("UPDATE fencelock_floor SET token = token - 1", ()),
            ("UPDATE fencelock_floor SET token = token - 1, audit_id = (SELECT max(id) FROM fencelock_audit)", ()),
            ("INSERT OR REPLACE INTO fencelock_floor VALUES (?, 0, 1)", (stale.source_id,)),
            ("DELETE FROM fencelock_floor", ()),
        ):
            with pytest.raises(sqlite3.IntegrityError, match="fencelock: "):
                client.execute(statement, values)
    assert shop.floor() == stale.token
    entries = ask(file, "SELECT action, resource, from_token, to_token FROM fencelock_audit")
    assert entries == [("purge", "", stale.token, stale.token), ("floor", "", stale.token, stale.token - 1)]
