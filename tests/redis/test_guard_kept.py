"""What a guard keeps at Redis beside the marks, written by the script that it belongs to: effects (G13), the keys of
work that is done once (G14), and the floors of purged marks (G15).
"""

from contextlib import closing

import pytest

import fencelock
from fencelock import GuardError, SchemaError, SealLostError, StaleTokenError
from fencelock.protocol import (
    AuditEntry,
    Begin,
    Commit,
    ConflictError,
    FindOldMarks,
    Floor,
    PurgeMarks,
    RaiseMarks,
    ReadMarks,
)
from fencelock.stores.registry import guard_store
from tests.redis.fix_redis import Corner
from tests.redis.guarded import Scene, protect
from tests.support.effects import Effects
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource, sequencer
from tests.support.once import OvertakenJobs


@pytest.fixture
def guard_url(redis: Corner) -> str:
    protect(redis.url)
    return redis.url


class TestEffects(Effects):
    @pytest.fixture
    def effects_url(self, guard_url: str) -> str:
        return guard_url


class TestOnceJobs(OvertakenJobs):
    @pytest.fixture
    def once_url(self, guard_url: str) -> str:
        return guard_url


# --- purged marks -----------------------------------------------------------------------------------------------------
def purge(url: str) -> int:
    """Forget every mark, whatever its age."""
    with closing(guard_store(url).connect()) as connection:
        old = connection.perform(FindOldMarks("source", 0))
        entry = AuditEntry("purge", "", 0, 0, "a test", "a test")
        connection.perform(Begin())
        count = connection.perform(PurgeMarks(old, Floor("source", max(mark.token for mark in old)), entry))
        connection.perform(Commit())
        assert isinstance(count, int)
        return count


def test_g15_a_resource_that_was_purged_is_protected_again_above_its_floor(redis: Corner) -> None:
    scene = Scene(redis)
    scene.write(("SET", scene.key("a"), "1"))
    assert purge(scene.url) == 1
    with pytest.raises(SealLostError):
        scene.write(("SET", scene.key("a"), "late"))
    with pytest.raises(GuardError, match="has no mark"):
        scene.write(("SET", scene.key("a"), "early"), lease=HandmadeLease(6))
    scene.guard.protect()
    for token in (4, 5):
        with pytest.raises(StaleTokenError, match="marks of that source up to token 5 were purged"):
            scene.write(("SET", scene.key("a"), "late"), lease=HandmadeLease(token))
    scene.write(("SET", scene.key("a"), "2"), lease=HandmadeLease(6))
    assert scene.value("a") == "2"


def test_g9_a_lost_mark_is_not_created_again_at_zero(redis: Corner) -> None:
    """The set of resources knows it, unless that was lost too."""
    scene = Scene(redis)
    scene.guard.seal(scene.lease)
    scene.direct("DEL", scene.mark_key())
    with pytest.raises(GuardError, match="was protected before, and its mark is gone"):
        scene.guard.protect()
    scene.guard.protect(source=HandmadeSource(8))
    assert scene.guard.mark().token == 8


def test_g15_a_floor_raised_after_it_was_read_refuses_the_seal(redis: Corner) -> None:
    """A mark without a source gets one; meanwhile a mark of that source is purged elsewhere."""
    scene = Scene(redis)
    protect(redis.url, "another")
    scene.guard.seal(HandmadeLease(9))
    with closing(guard_store(redis.url).connect()) as connection:
        connection.perform(Begin())
        connection.perform(ReadMarks(("another",)))
        connection.perform(RaiseMarks(("another",), sequencer(5)))
        assert purge(redis.url) == 1
        with pytest.raises(ConflictError, match="the record of the floors has changed"):
            connection.perform(Commit())
    with pytest.raises(StaleTokenError):
        fencelock.guard(redis.url, resource="another", lock=LOCK).seal(HandmadeLease(5))


def test_g15_floors_and_marks_that_cannot_be_read_admit_nobody(redis: Corner) -> None:
    scene = Scene(redis)
    for own in ("floors", f"marks/{RESOURCE}"):
        for value in ("{}", "", "5", '{"schema":1}'):
            scene.direct("SET", redis.own(own), value)
            with pytest.raises(SchemaError):
                scene.guard.seal(scene.lease)
        scene.direct("DEL", redis.own(own))
