"""G12 on PostgreSQL: nobody but the schema's owner seals, presents or closes without a right, and what a forger did can
be undone.
"""

import psycopg
import pytest

from fencelock import RightError
from fencelock.stores.registry import guard_store
from tests.sql.dialect import MakeRole
from tests.sql.guarded import FORGED, Guarded, write
from tests.support.guards import RESOURCE, HandmadeLease, HandmadeSource, claim_of, sequencer

pytestmark = pytest.mark.server_wide


def test_g12_a_role_with_usage_alone_neither_seals_nor_presents_nor_closes(guarded: Guarded, role: str) -> None:
    """It forges a token above everything, from plain SQL and through the library; the holder does not notice."""
    holder = guarded.sealed(5)
    guard, refused = guarded.guard(user=role), f"role {role} has no right to resource reports.*fencelock grant"
    with pytest.raises(RightError, match=refused):
        guard.seal(HandmadeLease(FORGED))
    with pytest.raises(RightError, match=refused), guard.transaction(HandmadeLease(5)):
        raise AssertionError("not reached")
    with pytest.raises(RightError, match=refused):
        guard.close(HandmadeLease(5))
    with pytest.raises(RightError, match=f"--resource 'orders 7' --role '{role}'"):
        guarded.guard("orders 7", user=role).seal(HandmadeLease(6))
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


def test_g12_a_right_holds_for_the_members_of_its_role_and_not_for_who_calls_on_it(
    guarded: Guarded, make_role: MakeRole
) -> None:
    group = make_role()
    member, stranger = make_role(group), make_role()
    guarded.guard().grant(group)
    guarded.guard(user=member).seal(HandmadeLease(5))
    with pytest.raises(RightError):
        guarded.guard(user=stranger).seal(HandmadeLease(6))
    # A superuser that only sets the role is still what its session is.
    with guarded.database.connect() as native:
        native.execute(f"SET ROLE {stranger}".encode())
        native.execute("SELECT fencelock.seal(%s, 'reports')", (str(sequencer(7)),))


@pytest.mark.parametrize("statement", ["ANALYZE", "REINDEX TABLE {}.bait", "REFRESH MATERIALIZED VIEW {}.shown"])
def test_g12_a_tables_owner_has_no_right_of_the_session_that_maintains_the_table(
    guarded: Guarded, role: str, statement: str
) -> None:
    """There the server runs the owner's functions; and autovacuum, which nobody starts, has a superuser's session."""
    guarded.sealed(5)
    guarded.database.rows(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
    with guarded.database.connect(user=role) as native:
        native.execute(
            f"""
            CREATE FUNCTION {role}.seal(x int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
            BEGIN
                IF session_user <> '{role}' THEN
                    PERFORM fencelock.seal('{sequencer(FORGED)}', 'reports');
                END IF;
                RETURN x;
            END $$;
            CREATE TABLE {role}.bait AS SELECT generate_series(1, 100) AS x;
            CREATE INDEX ON {role}.bait ({role}.seal(x));
            CREATE MATERIALIZED VIEW {role}.shown AS SELECT {role}.seal(x) FROM {role}.bait WITH NO DATA;
            """.encode()
        )
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="within security-restricted operation"):
        guarded.database.rows(statement.format(role))
    assert guarded.guard().mark().token == 5


def test_g12_a_right_to_a_role_that_was_dropped_is_none_and_to_an_unknown_one_is_refused(guarded: Guarded) -> None:
    role = f"passing_{guarded.database.name}"
    with pytest.raises(Exception, match=f"there is no role {role}"):
        guarded.guard().grant(role)
    guarded.database.rows(f"CREATE ROLE {role}")
    guarded.guard().grant(role)
    guarded.database.rows(f"DROP ROLE {role}")
    guarded.sealed(5)


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
