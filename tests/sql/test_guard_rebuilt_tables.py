"""G16 on both SQL servers: a protected table that was rebuilt without its triggers stops guarded blocks."""

import pytest

from fencelock import StaleTokenError, UnprotectedTableError
from tests.sql.dialect import run
from tests.sql.guarded import Guarded, write
from tests.support.guards import HandmadeLease
from tests.support.helpers import wait_until

CREATE = "CREATE TABLE rebuilt (id int PRIMARY KEY, value varchar(200))"
COPY = "INSERT INTO rebuilt SELECT id, value FROM reports"
REBUILDS = {
    "dropped": (CREATE, COPY, "DROP TABLE reports", "ALTER TABLE rebuilt RENAME TO reports"),
    "kept": (CREATE, COPY, "ALTER TABLE reports RENAME TO old", "ALTER TABLE rebuilt RENAME TO reports"),
}


def rebuild(guarded: Guarded, how: str = "dropped") -> None:
    """Rebuild the table as a tool does that knows nothing of triggers."""
    for statement in REBUILDS[how]:
        guarded.database.rows(statement)


@pytest.mark.parametrize("how", REBUILDS)
def test_g16_a_rebuilt_table_stops_guarded_blocks_until_it_is_protected(guarded: Guarded, how: str) -> None:
    lease = HandmadeLease(5)
    with guarded.guard().transaction(lease) as native:
        write(native)
    rebuild(guarded, how)
    for holder in (lease, HandmadeLease(6)):
        with pytest.raises(UnprotectedTableError, match=r"reports.*protect"), guarded.guard().transaction(holder):
            pass
    assert guarded.value() == "mine"
    guarded.guard().protect("reports")
    with guarded.guard().transaction(HandmadeLease(6)) as native:
        write(native, "again")
    assert guarded.value() == "again"


def test_g16_an_open_session_notices_within_a_second(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)

    def is_stopped() -> bool:
        try:
            with guard.transaction(lease):
                return False
        except UnprotectedTableError:
            return True

    assert not is_stopped()
    rebuild(guarded)
    wait_until(is_stopped)


def test_g16_a_table_dropped_on_purpose_stops_nothing(guarded: Guarded) -> None:
    guarded.database.rows("CREATE TABLE orders (id int PRIMARY KEY, value varchar(200))")
    guarded.guard().protect("orders")
    guarded.database.rows("DROP TABLE orders")
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        write(native)
    assert guarded.value() == "mine"


def test_g16_a_renamed_table_stops_nothing(guarded: Guarded) -> None:
    guarded.database.rows("ALTER TABLE reports RENAME TO moved")
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        run(native, "UPDATE moved SET value = 'mine'")


def test_g16_a_rebuilt_table_that_was_only_observed_stops_nothing(unprotected: Guarded) -> None:
    unprotected.guard().protect("reports", mode="observe")
    rebuild(unprotected)
    with unprotected.guard().transaction(HandmadeLease(5)) as native:
        write(native)
    assert unprotected.value() == "mine"


def test_g16_another_resources_rebuilt_table_stops_nothing(guarded: Guarded) -> None:
    guarded.database.rows("CREATE TABLE orders (id int PRIMARY KEY, value varchar(200))")
    guarded.guard("orders").protect("orders")
    rebuild(guarded)
    with guarded.guard("orders").transaction(HandmadeLease(5)) as native:
        run(native, "INSERT INTO orders VALUES (1, 'mine')")
    with (
        pytest.raises(UnprotectedTableError),
        guarded.guard("orders", "reports").transaction(HandmadeLease(6)),
    ):
        pass


def test_g16_an_unprotected_table_stops_nothing(guarded: Guarded) -> None:
    rebuild(guarded)
    guarded.guard().unprotect("reports", reason="no longer ours")
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        write(native)
    assert guarded.value() == "mine"


def test_g16_a_callers_transaction_is_stopped_too(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    guard.seal(lease)
    rebuild(guarded)
    with guarded.client() as own:
        run(own, "START TRANSACTION")
        with pytest.raises(UnprotectedTableError), guard.check(lease, connection=own):
            pass
        run(own, "ROLLBACK")


def test_g16_a_client_in_any_language_is_stopped_too(guarded: Guarded) -> None:
    guarded.sealed(5)
    rebuild(guarded)
    with guarded.client() as own:
        run(own, "START TRANSACTION")
        with pytest.raises(guarded.sql.client_error) as caught:
            guarded.present(own, 5)
        assert guarded.sql.code_of(caught.value) == "FL018"
        run(own, "ROLLBACK")


def test_g16_a_stale_lease_is_stale_first(guarded: Guarded) -> None:
    guarded.sealed(6)
    rebuild(guarded)
    with pytest.raises(StaleTokenError), guarded.guard().transaction(HandmadeLease(5)):
        pass
