"""The rule G15 among real processes: holders that are frozen over a purge of marks."""

from pathlib import Path

import pytest

import fencelock
from tests.process.actors import Stage
from tests.process.guard_stage import file, guard_of, play, stage
from tests.support.guards import LOCK, url_of, value_in, write

__all__ = ["file", "stage"]

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("begin", "refused"), [("guard.seal(sequencer)", "SealLostError"), ("pass", "StaleTokenError")]
)
def test_g15_a_holder_frozen_over_a_purge_writes_nothing_when_it_thaws(
    stage: Stage, file: Path, begin: str, refused: str
) -> None:
    """By its sequencer, as code does that asks no lease. One has sealed before, and one not yet."""
    old = play(
        stage,
        f"""
        lease = lock.acquire()
        sequencer = lease.sequencer
        {begin}
        say("held")
        hear()
        try:
            with guard.transaction(sequencer) as connection:
                write(connection, "stale")
            say("written")
        except fencelock.FencelockError as error:
            say(type(error).__name__)
        """,
    )
    assert old.hear() == "held"
    old.freeze()
    with fencelock.connect(stage.url) as source:
        source.break_lock(LOCK, reason="its holder stands still")
        with source.lock(LOCK) as lease:
            write(guard_of(file), lease, "newer")
        assert fencelock.purge_marks(url_of(file), source=source, older_than=0) == 1
    assert guard_of(file).mark().token == 0
    old.thaw()
    old.say()
    assert old.hear() == refused
    assert value_in(file) == "newer"
