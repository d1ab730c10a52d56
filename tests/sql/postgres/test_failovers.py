"""The rule T7 with real standbys of a PostgreSQL server: promoted late, one by one, or while the primary runs."""

import pytest

from fencelock.protocol import source_requests as ask
from fencelock_lab.servers.postgres import PostgresServer
from tests.sql.clients import one_token
from tests.sql.postgres.fix_copies import (
    Copies,
    disconnect,
    failover_url,
    promote,
    wait_until_replayed,
)
from tests.sql.postgres.fix_postgres import only
from tests.sql.postgres.issued import Clients, IssuedTokens, check_refused

pytestmark = pytest.mark.process


def lagging(primary: PostgresServer, copies: Copies) -> PostgresServer:
    """Return a standby that has all that there is now, and gets no more."""
    standby = copies.standby_of(primary)
    wait_until_replayed(primary, standby)
    disconnect(standby)
    return standby


@only("18")
def test_t7_a_standby_that_is_promoted_without_the_last_grants(
    primary: PostgresServer, issued: IssuedTokens, copies: Copies, clients: Clients
) -> None:
    standby = lagging(primary, copies)
    knowing = clients(failover_url([primary, standby]))
    issued.issue(primary.url())
    issued.note(knowing.token("held", "holder"))
    primary.kill()
    promote(standby)
    issued.issue_to(knowing)
    issued.issue(standby.url())
    assert "no longer knows the lock" in knowing.ask(ask.Renew((("held", "holder"),))).lost["holder"]


@only("18")
@pytest.mark.parametrize("has_crashed_before", [False, True])
def test_t7_two_standbys_that_are_promoted_one_after_the_other(
    primary: PostgresServer, issued: IssuedTokens, copies: Copies, clients: Clients, has_crashed_before: bool
) -> None:
    """The second never saw the history of the first, and begins its own from the same state: above it, by the clock."""
    if has_crashed_before:
        primary.crash()
        issued.issue(primary.url())
    first, second = lagging(primary, copies), lagging(primary, copies)
    issued.issue(primary.url())
    primary.kill()
    promote(first)
    knowing = clients(failover_url([first, second]))
    issued.issue_to(knowing)
    issued.issue(first.url())
    first.kill()
    promote(second)
    issued.issue(second.url())
    check_refused(knowing, r"went back from epoch (\d) \(history \w+\) to \1 \(history \w+\)")


@only("18")
def test_t7_a_primary_that_goes_on_after_it_was_replaced(
    primary: PostgresServer, issued: IssuedTokens, copies: Copies, clients: Clients
) -> None:
    """Split in two, both issue tokens: the new primary's are above the old one's."""
    standby = lagging(primary, copies)
    issued.issue(primary.url())
    promote(standby)
    behind = [one_token(primary.url()) for _ in range(3)]
    for token in behind:
        issued.note(token)
    issued.issue(standby.url())
    assert one_token(primary.url()) == behind[-1] + 1
    knowing = clients(standby.url())
    issued.issue_to(knowing)
