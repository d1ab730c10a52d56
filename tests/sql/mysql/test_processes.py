"""Real processes with the lock in MySQL and the guarded table in SQLite: frozen, killed, forked, interrupted.

What they do, and what must come of it, is what PostgreSQL's tests say: they are run here with another source.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fencelock
from fencelock.stores.mysql.source.store import MySQLSource
from tests.guards import make_file
from tests.process.test_fork import FORKING
from tests.sql.mysql.fix_mysql import Database
from tests.sql.mysql.stage import MySQLStage
from tests.sql.postgres import test_processes as shared

pytestmark = pytest.mark.process


@pytest.fixture
def stage(mysql_database: Database, tmp_path: Path) -> Iterator[MySQLStage]:
    MySQLSource(mysql_database.url()).install()
    with MySQLStage(mysql_database, tmp_path) as made:
        yield made


@pytest.fixture
def source(stage: MySQLStage) -> Iterator[fencelock.Source]:
    with fencelock.connect(stage.url) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_file(tmp_path / "app.db")


test_frozen = shared.test_a_holder_frozen_past_its_ttl_is_refused_by_the_table
test_killed = shared.test_a_killed_holders_lock_is_free_after_its_ttl_and_a_killed_waiter_blocks_nobody
test_killed_anywhere = shared.test_killed_anywhere_between_acquire_and_release_no_token_comes_twice
test_terminated = shared.test_h5_sigterm_in_the_middle_gives_back_what_there_is
test_the_end = shared.test_the_interpreters_end_releases_what_is_held
test_many = shared.test_ten_processes_and_their_threads_never_meet
test_h6_busy = shared.test_h6_forks_of_a_busy_process_never_hang


@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "source.close(); sys.exit(0)", "del lease, source"])
def test_h6_a_child_neither_uses_nor_ends_its_parents_connections(stage: MySQLStage, ending: str) -> None:
    actor = stage.actor(
        FORKING
        + f"""
lease = source.lock("a", ttl=600.0).acquire()
say("ready")
hear()
child = os.fork()
if not child:
    import gc
    try:
        lease.release()
    except fencelock.LeaseInheritedError:
        pass
    with source.lock("c", ttl=600.0) as own:
        assert source.lock("a").acquire(timeout=0.1) is None
        assert own.token > lease.token
    gc.collect()
    {ending}
    os._exit(0)
say(os.waitpid(child, 0)[1])
hear()
say([lease.is_valid, lease.release()])
hear()
"""
    )
    assert actor.hear() == "ready"
    before = stage.backends(actor)
    assert before
    actor.say()
    assert actor.hear() == 0, actor.errors
    assert stage.backends(actor) == before, "the parent's connections are those that it had"
    actor.say()
    assert actor.hear() == [True, True]
    assert stage.backends(actor) == before


def test_h6_the_server_sees_the_parent_go_though_the_child_lives(stage: MySQLStage, source: fencelock.Source) -> None:
    actor = stage.actor("""
        lease = source.lock("a", ttl=1.0).acquire()
        child = os.fork()
        if not child:
            with fencelock.connect(URL).lock("b", ttl=600.0):
                say("child")
                hear()
            os._exit(0)
        time.sleep(600)
    """)
    assert actor.hear() == "child"
    before = stage.backends(actor)
    assert before
    actor.kill()
    known = "select id from information_schema.processlist"
    shared.wait_until(lambda: not before & {number for (number,) in stage.database.rows(known)})
    assert source.lock("a").acquire(timeout=30) is not None
    assert source.info("b").is_held
