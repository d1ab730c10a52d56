"""T7 where the lock and the table that it protects are in one PostgreSQL database, which is restored as a whole."""

import pytest

import fencelock
from fencelock import StaleTokenError
from fencelock_lab.servers.postgres import PostgresServer
from tests.sql.dialect import install
from tests.sql.postgres.fix_copies import Copies
from tests.sql.postgres.fix_postgres import only
from tests.support.guards import LOCK, RESOURCE

pytestmark = [pytest.mark.process, only("18")]


def test_t7_a_lease_from_before_a_restore_of_both_is_refused_once_the_epoch_and_then_the_mark_are_raised(
    own_postgres: PostgresServer, copies: Copies
) -> None:
    """The process that shows its sequencer is another one, which remembers no seal. The order matters: a source
    that was recovered notices that at its next grant, and until then knows no token that was issued after the backup.
    """
    url = install(own_postgres.url())
    own_postgres.rows("CREATE TABLE reports (value text)")
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    guard.protect("reports")
    with fencelock.connect(url) as source:
        with source.lock(LOCK, ttl=30.0) as lease:
            guard.seal(lease)
        backup = copies.base_backup(own_postgres)
        late = source.lock(LOCK, ttl=30.0).acquire()
        assert late is not None
        guard.seal(late)
    restored = copies.started(backup, own_postgres).url()
    other = fencelock.guard(restored, resource=RESOURCE, lock=LOCK)
    with fencelock.connect(restored) as operator:
        assert operator.describe().last_token < late.token, "it has not noticed yet"
        operator.raise_epoch(reason="restored")
        other.raise_to(operator, reason="restored")
    with pytest.raises(StaleTokenError):
        other.seal(late.sequencer)
