"""T1 across the end of all power: grants and releases are not flushed, and yet no token is told twice.

What a disk holds after a power cut is what was flushed, and any part of what was only written. Here it is the least:
every file as it was at the last checkpoint, which flushes all, and of the log written since, what the server said was
flushed at the moment of the cut, and not a byte more. The server that starts over these files recovers as it does after
a real cut. That the cut takes away grants that were told is checked, and so is that a source without its witness fails.
"""

import random
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

import fencelock
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock_lab.servers.postgres import PostgresFleet, PostgresServer
from tests.sql.clients import SqlClient
from tests.sql.granters import STOPS, check_tokens_over_stops
from tests.sql.postgres.fix_copies import Copies
from tests.sql.postgres.fix_postgres import only

pytestmark = [pytest.mark.process, only("18")]

SEGMENT_BYTES = 16 * 2**20
LAZY = {"wal_writer_delay": "10s", "checkpoint_timeout": "1h", "max_wal_size": "10GB", "autovacuum": "off"}
"""Nothing is flushed that nobody asks for."""


# --- the server is told to stop at once, in the middle of load ------------------------------------


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["immediate", "kill"])
def test_t1_no_token_comes_twice_over_stops_in_the_middle_of_load(
    own_postgres: PostgresServer, mode: Literal["immediate", "kill"]
) -> None:
    PostgresSource(own_postgres.url()).install()
    stop = own_postgres.crash if mode == "kill" else lambda: own_postgres.restart(mode)
    check_tokens_over_stops(own_postgres.url(), stop, mode)
    assert own_postgres.value("select epoch from fencelock.source") == 1 + STOPS


# --- the power is cut -----------------------------------------------------------------------------
@dataclass
class Machine:
    """A server whose disk is known."""

    fleet: PostgresFleet
    copies: Copies
    server: PostgresServer
    told: list[int] = field(default_factory=list)

    def flush_all(self) -> None:
        """Have everything flushed, and remember the disk as it is then."""
        self.server.rows("checkpoint")
        self.disk = self.fleet.new_folder("disk") / "data"
        self.server.freeze()
        try:
            subprocess.run(["cp", "--archive", self.server.data, self.disk], check=True)
        finally:
            self.server.thaw()

    def grant(self, count: int) -> None:
        """Grant and release so many times, and note what was told."""
        client = SqlClient(self.server.url())
        for number in range(count):
            token = client.one_token(f"lock{number % 7}")
            assert token > max(self.told, default=0), f"token {token} was told after {max(self.told)}"
            self.told.append(token)
        client.close()

    def lowest_left(self, names: range) -> int:
        """Return the highest token that the files know of, on these locks."""
        asked = [f"lock{number}".encode() for number in names]
        return int(self.server.value("select coalesce(max(token), 0) from fencelock.lock where name = any(%s)", asked))

    def cut(self) -> None:
        """Cut the power; another server goes on with the disk that is left."""
        # All that was told until now had its flush before this moment.
        flushed = self.server.value("select pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
        timeline = self.server.value("select timeline_id from pg_control_checkpoint()")
        old = self.server
        old.kill()
        log = self.disk / "pg_wal"
        shutil.rmtree(log)
        subprocess.run(["cp", "--archive", old.data / "pg_wal", log], check=True)
        cut_log(log, int(timeline), int(flushed))
        self.server = self.copies.started(self.disk, old)


def cut_log(log: Path, timeline: int, flushed: int) -> None:
    """Take away of the log's segments what lies behind a position."""
    segment, offset = divmod(flushed, SEGMENT_BYTES)
    last = f"{timeline:08X}{segment // 256:08X}{segment % 256:08X}"
    assert (log / last).exists()
    for path in log.iterdir():
        if path.is_file() and len(path.name) == len(last) and path.name > last:
            path.unlink()
    with (log / last).open("r+b") as file:
        file.truncate(offset)
        file.truncate(SEGMENT_BYTES)


@pytest.fixture
def machine(own_postgres: PostgresServer, postgres_fleet: PostgresFleet, copies: Copies) -> Machine:
    own_postgres.settings |= LAZY
    own_postgres.restart()
    PostgresSource(own_postgres.url()).install()
    return Machine(postgres_fleet, copies, own_postgres)


def test_t1_no_token_is_issued_again_after_a_power_cut(machine: Machine) -> None:
    moments = random.Random("cut")
    for _ in range(3):
        machine.grant(5)
        machine.flush_all()
        machine.grant(moments.randrange(10, 200))
        machine.cut()
        assert machine.lowest_left(range(7)) < machine.told[-1], "the cut takes away what was told"
    machine.grant(5)


def test_t1_a_bound_that_was_raised_is_durable_before_a_token_above_it_is_issued(machine: Machine) -> None:
    """Also with a clock that says no more than the tokens that are known: the bound alone keeps them apart."""
    machine.grant(5)
    for _ in range(2):
        ahead = machine.told[-1] + 2**40 * 2**14
        machine.server.rows("update fencelock.source set bound = %s, xid = pg_current_xact_id()::xid", ahead + 20)
        machine.server.rows("select setval('fencelock.token', %s)", ahead)
        machine.flush_all()
        machine.grant(100)
        assert machine.told[-1] > ahead + 20
        machine.cut()
        assert machine.server.value("select bound from fencelock.source") > machine.told[-1]
        machine.grant(5)


def test_t7_a_raised_epoch_survives_a_power_cut(machine: Machine) -> None:
    machine.grant(5)
    machine.flush_all()
    client = SqlClient(machine.server.url())
    raised = client.raise_epoch()
    client.close()
    machine.cut()
    assert machine.server.rows("select history_id, epoch from fencelock.source") == [(raised.history_id, 2)]
    machine.grant(1)
    assert machine.told[-1] > raised.last_token


def test_a_break_that_was_confirmed_survives_a_power_cut(machine: Machine) -> None:
    machine.grant(1)
    client = SqlClient(machine.server.url())
    client.token("broken", "holder")
    machine.flush_all()
    with fencelock.connect(machine.server.url()) as source:
        machine.told.append(source.break_lock("broken", reason="a test").token)
    client.close()
    machine.cut()
    with fencelock.connect(machine.server.url()) as source:
        assert not source.info("broken").is_held
        lease = source.lock("broken").acquire(timeout=30)
        assert lease is not None
        assert lease.token > machine.told[-1]


def test_t1_without_the_witness_a_token_is_issued_again(machine: Machine) -> None:
    """The same check must see what it is for: here the witness is logged, and outlives the cut."""
    machine.server.rows("alter table fencelock.witness set logged")
    machine.server.rows("delete from fencelock.witness")
    machine.server.rows("insert into fencelock.witness values (1, pg_current_xact_id()::xid, fencelock.location())")
    machine.grant(5)
    machine.flush_all()
    machine.grant(200)
    machine.cut()
    with pytest.raises(AssertionError, match="was told after"):
        machine.grant(5)
