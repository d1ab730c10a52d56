"""G12 on PostgreSQL: nobody but the schema's owner seals, presents or closes without a right, and what a forger did can
be undone.
"""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from fencelock import Guard, ImplausibleTokenError, RightError, UnfencedWriteError, inspect_resources
from fencelock.model import MAX_TOKEN, PLAUSIBLE_GAIN, token_ceiling
from fencelock.protocol.guard_requests import Right
from fencelock.stores.registry import guard_store
from tests.sql.guarded import Guarded, Step, write
from tests.support.guards import RESOURCE, HandmadeLease, HandmadeSource, claim_of, sequencer
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide
FORGED = 2**53
"""A token that nobody has issued, below the ceiling."""
MakeRole = Callable[..., str]


@pytest.fixture
def make_role(guarded: Guarded) -> Iterator[MakeRole]:
    """Make roles that may use the schema and write the table, and have no right."""
    made: list[str] = []
    database = guarded.database

    def make(*groups: str) -> str:
        role = f"role{len(made)}_{database.name}"
        database.rows(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fencelock TO {role}")
        database.rows(f"GRANT ALL ON reports TO {role}; GRANT USAGE ON SCHEMA public TO {role}")
        for group in groups:
            database.rows(f"GRANT {group} TO {role}")
        made.append(role)
        return role

    yield make
    for role in made:
        database.rows(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture
def role(make_role: MakeRole) -> str:
    return make_role()


def guard_of(guarded: Guarded, role: str, *resources: str) -> Guard:
    return guarded.guard(*resources, user=role)


def test_g12_a_role_with_usage_alone_neither_seals_nor_presents_nor_closes(guarded: Guarded, role: str) -> None:
    """It forges a token above everything, from plain SQL and through the library; the holder does not notice."""
    holder = guarded.sealed(5)
    guard, refused = guard_of(guarded, role), f"role {role} has no right to resource reports.*fencelock grant"
    with pytest.raises(RightError, match=refused):
        guard.seal(HandmadeLease(FORGED))
    with pytest.raises(RightError, match=refused), guard.transaction(HandmadeLease(5)):
        raise AssertionError("not reached")
    with pytest.raises(RightError, match=refused):
        guard.close(HandmadeLease(5))
    with pytest.raises(RightError, match=f"--resource 'orders 7' --role '{role}'"):
        guard_of(guarded, role, "orders 7").seal(HandmadeLease(6))
    calls = [(f"{each}(%s, 'reports')", str(sequencer(FORGED))) for each in ("seal", "raise_marks")]
    calls += [("present(%s, 'reports')", str(sequencer(5))), ("close_marks(%s, 'reports')", claim_of(5))]
    with guarded.database.connect(user=role) as native:
        for call, secret in calls:
            with pytest.raises(psycopg.Error) as caught:
                native.execute(f"SELECT fencelock.{call}".encode(), (secret,))
            assert caught.value.sqlstate == "FL014"
            assert caught.value.diag.message_detail == f'{{"resource" : "reports", "role" : "{role}"}}'
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
        with pytest.raises(RightError, match="resource orders"):
            guard_of(guarded, role, *resources).seal(HandmadeLease(6))
    assert "orders" not in {mark.resource for mark in inspect_resources(guarded.database.url()).marks}


def test_g12_a_right_to_a_prefix_is_one_to_each_resource_with_it(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role, resource="order:*")
    for allowed in ("order:1", "order:", "order:*"):
        guard_of(guarded, role, allowed).seal(HandmadeLease(5))
    for other in ("order", "orders:1", "xorder:1", RESOURCE):
        with pytest.raises(RightError):
            guard_of(guarded, role, other).seal(HandmadeLease(5))


def test_g12_a_right_holds_for_the_members_of_its_role_and_not_for_who_calls_on_it(
    guarded: Guarded, make_role: MakeRole
) -> None:
    group = make_role()
    member, stranger = make_role(group), make_role()
    guarded.guard().grant(group)
    guard_of(guarded, member).seal(HandmadeLease(5))
    with pytest.raises(RightError):
        guard_of(guarded, stranger).seal(HandmadeLease(6))
    # A superuser that only sets the role is still what its session is.
    with guarded.database.connect() as native:
        native.execute(f"SET ROLE {stranger}".encode())
        native.execute("SELECT fencelock.seal(%s, 'reports')", (str(sequencer(7)),))


def test_g12_a_right_to_a_role_that_was_dropped_is_none_and_to_an_unknown_one_is_refused(guarded: Guarded) -> None:
    role = f"passing_{guarded.database.name}"
    with pytest.raises(Exception, match=f"there is no role {role}"):
        guarded.guard().grant(role)
    guarded.database.rows(f"CREATE ROLE {role}")
    guarded.guard().grant(role)
    guarded.database.rows(f"DROP ROLE {role}")
    guarded.sealed(5)


def test_g12_a_seal_that_waits_for_the_mark_is_refused_when_its_right_is_taken(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role)
    with guarded.database.connect(user=role) as forger:
        guarded.sealed(5)
        with guarded.database.connect() as holder, holder.transaction():
            guarded.present(holder, 5)
            seal = Step(forger.execute, "SELECT fencelock.seal(%s, 'reports')", (str(sequencer(FORGED)),))
            guarded.wait_for_lock(forger)
            assert guarded.guard().revoke(role, reason="a test") == (Right(RESOURCE, role),)
        with pytest.raises(psycopg.Error) as caught:
            seal.end()
        assert caught.value.sqlstate == "FL014"
    assert guarded.guard().mark().token == 5


def test_revoking_takes_each_right_that_covers_the_resource_and_leaves_the_others(guarded: Guarded, role: str) -> None:
    guard = guarded.guard()
    for resource in (RESOURCE, "rep*", "*", "orders", "reports:*"):
        guard.grant(role, resource=resource)
    assert set(guard.revoke(role, reason="a test")) == {Right(each, role) for each in (RESOURCE, "rep*", "*")}
    assert guard.revoke(role, resource="reports:*", reason="a test") == (Right("reports:*", role),)
    assert inspect_resources(guarded.database.url()).rights == (Right("orders", role),)
    actions = guarded.database.rows("SELECT action FROM fencelock.guard_audit ORDER BY id")
    assert [action for (action,) in actions] == ["grant"] * 5 + ["revoke"] * 2


def test_rights_are_shown_for_the_resource_that_they_cover(guarded: Guarded, role: str) -> None:
    for resource in (RESOURCE, "rep*", "orders"):
        guarded.guard().grant(role, resource=resource)
    shown = inspect_resources(guarded.database.url(user=role), RESOURCE).rights
    assert shown == (Right("rep*", role), Right(RESOURCE, role))


def test_doctor_names_rights_that_no_table_needs(guarded: Guarded, role: str) -> None:
    for resource in (RESOURCE, "rep*", "*", "orders", "order*"):
        guarded.guard().grant(role, resource=resource)
    gone = f"gone_{guarded.database.name}"
    guarded.database.rows(f"CREATE ROLE {gone}")
    guarded.guard().grant(gone)
    guarded.database.rows(f"DROP ROLE {gone}")
    found = guard_store(guarded.database.url(user=role)).examine()
    assert [(one.code, one.resource) for one in found] == [
        ("idle-right", each) for each in ("order*", "orders", RESOURCE)
    ]
    assert "there is no such role" in found[-1].message


# --- the cure of a poisoned mark ------------------------------------------------------------------
def forge_on(forger: psycopg.Connection, poisoned: str) -> None:
    """Seal with one forged token after the other, until the session ends."""
    for token in range(FORGED, FORGED + 10**6):
        try:
            forger.execute("SELECT fencelock.seal(%s, 'reports')", (poisoned.replace(str(FORGED), str(token)),))
        except psycopg.Error as error:
            if error.sqlstate is None or forger.closed:
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
        spared.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            ended.execute("SELECT 1")


def test_g12_a_forger_that_is_a_member_of_the_role_is_ended_with_its_seal(
    guarded: Guarded, make_role: MakeRole
) -> None:
    """Its uncommitted seal keeps the mark locked, and could be committed after the cure."""
    group = make_role()
    guarded.guard().grant(group)
    with guarded.database.connect(user=make_role(make_role(group))) as forger:
        forger.execute("BEGIN")
        forger.execute("SELECT fencelock.seal(%s, 'reports')", (str(sequencer(FORGED)),))
        assert guarded.guard().unpoison(group, source=HandmadeSource(0), reason="a forger").sessions == 1
        with pytest.raises(psycopg.OperationalError):
            forger.execute("COMMIT")
    assert guarded.guard().mark().token == 0


# --- the ceiling ----------------------------------------------------------------------------------
def ceiling_of(guarded: Guarded, mark: int = 0) -> int:
    return token_ceiling(guarded.database.value("SELECT extract(epoch FROM clock_timestamp())::float8"), mark)


@pytest.mark.parametrize("token", [MAX_TOKEN, 1_780_000_000 * 10**9])
def test_g12_a_token_that_no_source_can_have_issued_is_refused_in_sql(guarded: Guarded, token: int) -> None:
    guarded.sealed(5)
    with (
        guarded.database.connect() as native,
        pytest.raises(psycopg.Error, match="no source can have issued") as caught,
    ):
        native.execute("SELECT fencelock.seal(%s, 'reports')", (str(sequencer(token)),))
    assert caught.value.sqlstate == "FL012"
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
