"""G12 on MySQL: nobody but the routines' owner seals, presents or closes without a right, and what a forger did can
be undone.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from fencelock import Guard, GuardError, ImplausibleTokenError, RightError, UnfencedWriteError, inspect_resources
from fencelock.model import MAX_TOKEN, PLAUSIBLE_GAIN, token_ceiling
from fencelock.protocol.guard_requests import EndSessions, Right
from fencelock.stores.registry import guard_store
from tests.sql.dialect import run
from tests.sql.guarded import Guarded, Step, write
from tests.sql.mysql.dialect import SIGNALLED, code_of
from tests.support.guards import RESOURCE, HandmadeLease, HandmadeSource, claim_of, sequencer
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide
FORGED = 2**53
"""A token that nobody has issued, below the ceiling."""
MakeRole = Callable[..., str]


@pytest.fixture
def make_role(guarded: Guarded) -> Iterator[MakeRole]:
    """Make accounts that may call every routine and write the table, and have no right."""
    made: list[str] = []
    database = guarded.database

    def make(host: str = "%") -> str:
        role = f"role{len(made)}_{database.name}"
        database.rows(f"CREATE USER {role}@'{host}'")
        database.rows(f"GRANT EXECUTE ON {database.name}.* TO {role}@'{host}'")
        database.rows(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database.name}.reports TO {role}@'{host}'")
        made.append(f"{role}@'{host}'")
        return role

    yield make
    for account in made:
        database.rows(f"DROP USER {account}")


@pytest.fixture
def role(make_role: MakeRole) -> str:
    return make_role()


def guard_of(guarded: Guarded, role: str, *resources: str) -> Guard:
    return guarded.guard(*resources, user=role)


def test_g12_an_account_with_execute_alone_neither_seals_nor_presents_nor_closes(guarded: Guarded, role: str) -> None:
    """It forges a token above everything, from plain SQL and through the library; the holder does not notice."""
    holder = guarded.sealed(5)
    guard, refused = guard_of(guarded, role), f"account {role}@.* has no right to resource 'reports'.*fencelock grant"
    with pytest.raises(RightError, match=refused):
        guard.seal(HandmadeLease(FORGED))
    with pytest.raises(RightError, match=refused), guard.transaction(HandmadeLease(5)):
        raise AssertionError("not reached")
    with pytest.raises(RightError, match=refused):
        guard.close(HandmadeLease(5))
    forged, true, hexadecimal = str(sequencer(FORGED)), str(sequencer(5)), RESOURCE.encode().hex().upper()
    calls = (
        ("seal(%s, 'reports')", forged),
        ("write_and_commit(%s, %s, NULL, NULL)", hexadecimal, forged),
        ("write_and_commit(NULL, NULL, %s, %s)", hexadecimal, claim_of(5)),
        ("present(%s, 'reports')", true),
    )
    with guarded.database.connect(user=role) as native:
        for call, *parameters in calls:
            run(native, "START TRANSACTION" if call.startswith("present") else "ROLLBACK")
            with pytest.raises(pymysql.Error) as caught:
                run(native, f"CALL fencelock_{call}", *parameters)
            assert code_of(caught.value) == "FL014"
    mark = guarded.guard().mark()
    assert (mark.token, mark.is_closed) == (5, False)
    with guarded.guard().transaction(holder) as native:
        write(native)


def test_g12_a_right_to_one_resource_is_none_to_another(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role)
    with guard_of(guarded, role).transaction(HandmadeLease(5)) as native:
        write(native)
    guard_of(guarded, role).close(HandmadeLease(5))
    for resources in (("orders",), ("reports", "orders")):
        with pytest.raises(RightError, match="resource 'orders'"):
            guard_of(guarded, role, *resources).seal(HandmadeLease(6))
    assert "orders" not in {mark.resource for mark in inspect_resources(guarded.database.url()).marks}


def test_g12_a_right_to_a_prefix_is_one_to_each_resource_with_it(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role, resource="order:*")
    for allowed in ("order:1", "order:", "order:*"):
        guard_of(guarded, role, allowed).seal(HandmadeLease(5))
    for other in ("order", "orders:1", "xorder:1", RESOURCE):
        with pytest.raises(RightError):
            guard_of(guarded, role, other).seal(HandmadeLease(5))


def test_g12_a_right_is_the_accounts_that_logged_in_from_its_host(guarded: Guarded, make_role: MakeRole) -> None:
    guard, one, host = guarded.guard(), make_role(), guarded.database.value("SELECT SUBSTRING_INDEX(USER(), '@', -1)")
    for account in (one.upper(), f"{one}@10.9.8.%", f"{one}@", f"x{one}@%", f"{one}x"):
        guard.grant(account)
    with pytest.raises(RightError):
        guard_of(guarded, one).seal(HandmadeLease(5))
    guard.grant(f"{one}@{host[:-1]}%")
    guard_of(guarded, one).seal(HandmadeLease(5))
    with pytest.raises(RightError):
        guard_of(guarded, make_role()).seal(HandmadeLease(6))


def test_g12_a_user_whose_name_is_the_owners_in_other_letters_is_not_the_owner(guarded: Guarded) -> None:
    guarded.database.rows("CREATE OR REPLACE USER ROOT")
    guarded.database.rows(f"GRANT EXECUTE ON {guarded.database.name}.* TO ROOT")
    try:
        with pytest.raises(RightError):
            guard_of(guarded, "ROOT").seal(HandmadeLease(5))
    finally:
        guarded.database.rows("DROP USER ROOT")


def test_g12_a_seal_that_waits_for_the_mark_is_refused_when_its_right_is_taken(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role)
    with guarded.database.connect(user=role) as forger:
        guarded.sealed(5)
        with guarded.database.connect() as holder:
            run(holder, "START TRANSACTION")
            guarded.present(holder, 5)
            seal = Step(run, forger, "CALL fencelock_seal(%s, 'reports')", str(sequencer(FORGED)))
            guarded.wait_for_lock(forger)
            assert guarded.guard().revoke(role, reason="a test") == (Right(RESOURCE, role),)
            run(holder, "CALL fencelock_commit()")
        with pytest.raises(pymysql.Error) as caught:
            seal.end()
        assert code_of(caught.value) == "FL014"
    assert guarded.guard().mark().token == 5


@pytest.mark.parametrize(("change", "code"), [("revoke", "FL014"), ("require signatures", "FL013")])
def test_g12_an_old_snapshot_raises_no_mark(guarded: Guarded, role: str, change: str, code: str) -> None:
    """The account's transaction began when it had the right, and when no signature was required."""
    guard, hexadecimal = guarded.guard(), RESOURCE.encode().hex().upper()
    guard.grant(role)
    guarded.sealed(5)
    with guarded.database.connect(user=role) as native:
        run(native, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        run(native, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        if change == "revoke":
            guard.revoke(role, reason="a test")
        else:
            guard.require_signatures(reason="a test")
        for routine, parameter in (("raise_marks", str(sequencer(6))), ("close_marks", claim_of(5))):
            with pytest.raises(pymysql.Error, match="denied"):
                run(native, f"CALL fencelock_{routine}(%s, %s)", hexadecimal, parameter)
        with pytest.raises(pymysql.Error) as caught:
            run(native, "CALL fencelock_write_and_commit(%s, %s, NULL, NULL)", hexadecimal, str(sequencer(6)))
        assert code_of(caught.value) == code
    mark = guard.mark()
    assert (mark.token, mark.is_closed) == (5, False)


def test_revoking_takes_each_right_that_covers_the_resource_and_leaves_the_others(guarded: Guarded, role: str) -> None:
    guard = guarded.guard()
    for resource in (RESOURCE, "rep*", "*", "orders", "reports:*"):
        guard.grant(role, resource=resource)
    assert set(guard.revoke(role, reason="a test")) == {Right(each, role) for each in (RESOURCE, "rep*", "*")}
    assert guard.revoke(role, resource="reports:*", reason="a test") == (Right("reports:*", role),)
    assert inspect_resources(guarded.database.url()).rights == (Right("orders", role),)
    actions = guarded.database.rows("SELECT action FROM fencelock_guard_audit ORDER BY id")
    assert [action for (action,) in actions] == ["grant"] * 5 + ["revoke"] * 2


def test_rights_are_shown_for_the_resource_that_they_cover(guarded: Guarded, role: str) -> None:
    for resource in (RESOURCE, "rep*", "orders"):
        guarded.guard().grant(role, resource=resource)
    shown = inspect_resources(guarded.database.url(user=role), RESOURCE).rights
    assert shown == (Right("rep*", role), Right(RESOURCE, role))


def test_doctor_names_rights_that_no_table_needs(guarded: Guarded, role: str) -> None:
    for resource in (RESOURCE, "rep*", "*", "orders", "order*"):
        guarded.guard().grant(role, resource=resource)
    found = guard_store(guarded.database.url(user=role)).examine()
    assert [(one.code, one.resource) for one in found] == [("idle-right", each) for each in ("order*", "orders")]


# --- the cure of a poisoned mark ------------------------------------------------------------------
def forge_on(forger: Any, poisoned: str) -> None:
    """Seal with one forged token after the other, until the session ends."""
    for token in range(FORGED, FORGED + 10**6):
        try:
            run(forger, "CALL fencelock_seal(%s, 'reports')", poisoned.replace(str(FORGED), str(token)))
        except pymysql.Error as error:
            if error.args[0] != SIGNALLED:
                return


def test_g12_a_poisoned_mark_is_cured_while_the_forger_goes_on(guarded: Guarded, role: str) -> None:
    """The source of the mark is poisoned too, and two sessions of the forger seal for as long as they live."""
    guarded.guard().grant(role)
    database, poisoned = guarded.database, sequencer(FORGED, source_id="elsewhere")
    with database.connect(user=role) as first, database.connect(user=role) as second:
        steps = [Step(forge_on, each, str(poisoned)) for each in (first, second)]
        wait_until(lambda: guarded.guard().mark().token >= FORGED)
        cured = guarded.guard().unpoison(role, source=HandmadeSource(7), reason="a forger")
        for step in steps:
            step.end()
    assert cured.rights == (Right(RESOURCE, role),)
    assert cured.sessions == 2
    mark = guarded.guard().mark()
    assert (mark.token, mark.digest, mark.source_id) == (7, None, "source")
    with pytest.raises(RightError):
        guard_of(guarded, role).seal(HandmadeLease(FORGED))
    with guarded.guard().transaction(HandmadeLease(8)) as native:
        write(native, "by the next holder")
    assert guarded.value() == "by the next holder"


def test_ending_sessions_spares_others(guarded: Guarded, make_role: MakeRole) -> None:
    one, other = make_role(), make_role()
    with guarded.database.connect(user=one) as ended, guarded.database.connect(user=other) as spared:
        assert guarded.guard().unpoison(one, source=HandmadeSource(0), reason="a test").sessions == 1
        run(spared, "SELECT 1")
        with pytest.raises(pymysql.OperationalError):
            run(ended, "SELECT 1")


def test_ending_sessions_needs_the_right_to_see_them(guarded: Guarded, role: str) -> None:
    with pytest.raises(GuardError, match="may not see the sessions"):
        guard_store(guarded.database.url(user=role)).connect().perform(EndSessions(role))


# --- the ceiling ----------------------------------------------------------------------------------
def ceiling_of(guarded: Guarded, mark: int = 0) -> int:
    return token_ceiling(float(guarded.database.value(guarded.sql.clock_s)), mark)


@pytest.mark.parametrize("token", [MAX_TOKEN, 1_780_000_000 * 10**9])
def test_g12_a_token_that_no_source_can_have_issued_is_refused_in_sql(guarded: Guarded, token: int) -> None:
    guarded.sealed(5)
    with (
        guarded.database.connect() as native,
        pytest.raises(pymysql.Error, match="above ceiling") as caught,
    ):
        run(native, "CALL fencelock_seal(%s, 'reports')", str(sequencer(token)))
    assert code_of(caught.value) == "FL012"
    with pytest.raises(ImplausibleTokenError) as refused:
        guarded.guard().seal(HandmadeLease(token))
    assert (refused.value.token, refused.value.resource) == (token, RESOURCE)
    assert abs(refused.value.ceiling - ceiling_of(guarded)) < 60 * 2**30
    assert guarded.guard().mark().token == 5


def test_g12_the_ceiling_is_never_lower_than_a_gain_above_the_mark(guarded: Guarded) -> None:
    """Also where the guard's clock is behind: the mark here is far above what the clock gives."""
    guard, high = guarded.guard(), 2**60
    with pytest.raises(ImplausibleTokenError):
        guard.raise_to(high, reason="a test")
    guard.raise_to(high, reason="restored under a wrong clock", implausible=True)
    with pytest.raises(ImplausibleTokenError) as refused:
        guard.seal(HandmadeLease(high + PLAUSIBLE_GAIN + 1))
    assert refused.value.ceiling == high + PLAUSIBLE_GAIN
    guard.seal(HandmadeLease(high + PLAUSIBLE_GAIN))
    guard.lower(7, reason="a test")
    guard.seal(HandmadeLease(8))


def test_an_unprotected_role_writes_no_table_by_a_right_to_another(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role, resource="orders")
    guard = guard_of(guarded, role, "orders")
    with pytest.raises(UnfencedWriteError), guard.transaction(HandmadeLease(5)) as native:
        write(native)


def test_a_role_without_a_right_may_look(guarded: Guarded, role: str) -> None:
    guarded.sealed(5)
    seen: Any = inspect_resources(guarded.database.url(user=role))
    assert [mark.token for mark in seen.marks] == [5]


def test_the_command_that_grants_is_written_for_a_shell_and_no_part_of_a_name_as_the_whole(
    guarded: Guarded, role: str
) -> None:
    with pytest.raises(RightError, match=f"--resource 'orders 7' --role {role}`"):
        guard_of(guarded, role, "orders 7").seal(HandmadeLease(5))
    with pytest.raises(RightError, match=r"--resource 'o+…' --role"):
        guard_of(guarded, role, "o" * 200).seal(HandmadeLease(5))
