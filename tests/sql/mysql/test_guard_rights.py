"""G12 on MySQL: nobody but the routines' owner seals, presents or closes without a right, and what a forger did can
be undone.
"""

import pymysql
import pytest

import fencelock
from fencelock import GuardError, RightError, SigningKey, inspect_resources
from fencelock.protocol.guard_requests import EndSessions, Right
from fencelock.protocol.source_requests import Keys
from fencelock.stores.registry import guard_store
from fencelock.verifier import sign
from tests.sql.dialect import MakeRole, run
from tests.sql.guarded import FORGED, Guarded, write
from tests.sql.mysql.dialect import code_of
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource, claim_of, sequencer

pytestmark = pytest.mark.server_wide


def test_g12_an_account_with_execute_alone_neither_seals_nor_presents_nor_closes(guarded: Guarded, role: str) -> None:
    """It forges a token above everything, from plain SQL and through the library; the holder does not notice."""
    holder = guarded.sealed(5)
    guard, refused = guarded.guard(user=role), f"account {role}@.* has no right to resource 'reports'.*fencelock grant"
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
            run(native, "ROLLBACK" if call.startswith("seal") else "START TRANSACTION")
            run(native, "SAVEPOINT fencelock_presented")
            with pytest.raises(pymysql.Error) as caught:
                run(native, f"CALL fencelock_{call}", *parameters)
            assert code_of(caught.value) == "FL014"
    mark = guarded.guard().mark()
    assert (mark.token, mark.is_closed) == (5, False)
    with guarded.guard().transaction(holder) as native:
        write(native)


def test_g12_a_right_is_the_accounts_that_logged_in_from_its_host(guarded: Guarded, make_role: MakeRole) -> None:
    guard, one, host = guarded.guard(), make_role(), guarded.database.value("SELECT SUBSTRING_INDEX(USER(), '@', -1)")
    for account in (one.upper(), f"{one}@10.9.8.%", f"{one}@", f"x{one}@%", f"{one}x"):
        guarded.database.rows("INSERT INTO fencelock_right VALUES ('reports', %s)", account)
    with pytest.raises(RightError):
        guarded.guard(user=one).seal(HandmadeLease(5))
    guard.grant(f"{one}@{host[:-1]}%")
    guarded.guard(user=one).seal(HandmadeLease(5))
    with pytest.raises(RightError):
        guarded.guard(user=make_role()).seal(HandmadeLease(6))


def test_g12_the_rights_of_a_name_are_taken_with_those_from_certain_hosts(
    guarded: Guarded, make_role: MakeRole
) -> None:
    guard, one = guarded.guard(), make_role()
    host = guarded.database.value("SELECT SUBSTRING_INDEX(USER(), '@', -1)")
    accounts = [one, f"{one}@%", f"{one}@{host}"]
    others = [make_role(), f"{make_role()}@%"]
    for account in (*accounts, *others):
        guard.grant(account)
    assert guard.revoke(f"{one}@%", reason="a test") == (Right(RESOURCE, f"{one}@%"),)
    guard.grant(f"{one}@%")
    cured = guard.unpoison(one, source=HandmadeSource(0), reason="a forger")
    assert set(cured.rights) == {Right(RESOURCE, account) for account in accounts}
    with pytest.raises(RightError):
        guarded.guard(user=one).seal(HandmadeLease(5))
    assert {right.role for right in inspect_resources(guarded.database.url()).rights} == set(others)


@pytest.mark.parametrize(
    "call",
    [
        ("read_marks(%s, NULL, 'alone')", RESOURCE.encode().hex()),
        ("read_marks(%s, NULL, 'shared')", RESOURCE.encode().hex()),
        ("write_and_commit(%s, %s, NULL, NULL)", RESOURCE.encode().hex(), str(sequencer(FORGED))),
        ("write_and_commit(NULL, NULL, %s, %s)", RESOURCE.encode().hex(), claim_of(5)),
        ("seal(%s, 'reports')", str(sequencer(FORGED))),
    ],
)
def test_g12_an_xa_transaction_locks_and_changes_no_mark(guarded: Guarded, role: str, call: tuple[str, ...]) -> None:
    """Prepared, it would keep the mark locked when its session and its right are gone."""
    guarded.sealed(5)
    guarded.guard().grant(role)
    guarded.database.rows("CREATE TABLE own (id int)")
    guarded.database.rows(f"GRANT INSERT ON {guarded.database.name}.own TO {role}")
    routine, *parameters = call
    with guarded.database.connect(user=role) as native:
        run(native, "XA START 'forger'")
        run(native, "INSERT INTO own VALUES (1)")
        run(native, "SAVEPOINT fencelock_presented")
        with pytest.raises(pymysql.Error) as caught:
            run(native, f"CALL fencelock_{routine}", *parameters)
        assert code_of(caught.value) == "FL006"
        run(native, "XA END 'forger'")
        run(native, "XA PREPARE 'forger'")
    try:
        guarded.guard().seal(HandmadeLease(6))
    finally:
        guarded.database.rows("XA ROLLBACK 'forger'")
    mark = guarded.guard().mark()
    assert (mark.token, mark.is_closed) == (6, False)


def test_g12_a_sessions_temporary_tables_give_it_no_right_and_no_key(guarded: Guarded, role: str) -> None:
    """A routine finds a session's temporary table in the place of the one of that name."""
    guarded.sealed(5)
    guarded.database.rows(f"GRANT CREATE TEMPORARY TABLES ON {guarded.database.name}.* TO {role}")
    forged = sign(sequencer(FORGED), SigningKey("own", b"o" * 32))
    with guarded.database.connect(user=role) as native:
        run(native, "CREATE TEMPORARY TABLE fencelock_right (resource varbinary(512), account varchar(288))")
        run(native, "INSERT INTO fencelock_right VALUES ('*', %s)", role)
        with pytest.raises(pymysql.Error, match="PARTITION"):
            run(native, "CALL fencelock_seal(%s, 'reports')", str(forged))
        run(native, "DROP TEMPORARY TABLE fencelock_right")
        guarded.guard().grant(role)
        guarded.guard().install_keys(Keys((SigningKey("key", b"k" * 32),), ()))
        guarded.guard().require_signatures(reason="a test")
        inner, outer = (bytes(one ^ pad for one in b"o" * 32 + bytes(32)) for pad in (0x36, 0x5C))
        columns = "key_id varbinary(64), inner_pad binary(64), outer_pad binary(64), retired_s bigint"
        run(native, f"CREATE TEMPORARY TABLE fencelock_guard_key ({columns})")
        run(native, "INSERT INTO fencelock_guard_key VALUES ('own', %s, %s, NULL)", inner, outer)
        with pytest.raises(pymysql.Error, match="PARTITION"):
            run(native, "CALL fencelock_seal(%s, 'reports')", str(forged))
    assert guarded.guard().mark().token == 5


def test_g12_a_session_that_seals_does_not_choose_the_secret_of_the_marks_stamp(guarded: Guarded, role: str) -> None:
    """Who knows the stamp writes without a right as long as the mark stands: any other account, or this one without."""
    guarded.guard().grant(role)
    guarded.database.rows(f"GRANT CREATE TEMPORARY TABLES ON {guarded.database.name}.* TO {role}")
    with guarded.database.connect(user=role) as native:
        run(native, "CREATE TEMPORARY TABLE fencelock_guard (id int, schema_number int, mask_secret varbinary(64))")
        run(native, "INSERT INTO fencelock_guard VALUES (1, 3, 'known')")
        with pytest.raises(pymysql.Error, match="PARTITION"):
            run(native, "CALL fencelock_seal(%s, 'reports')", str(sequencer(5)))
        with pytest.raises(pymysql.Error, match="PARTITION"):
            run(native, "CALL fencelock_draw_mask(NULL)")
    assert guarded.guard().mark().token == 0


def test_g12_what_a_seal_wrote_in_another_transaction_is_not_there_to_be_committed(guarded: Guarded, role: str) -> None:
    guarded.sealed(5)
    guarded.guard().grant(role)
    hexadecimal = RESOURCE.encode().hex()
    with guarded.database.connect(user=role) as native:
        run(native, "START TRANSACTION")
        with pytest.raises(pymysql.Error) as caught:
            run(native, "CALL fencelock_write_and_commit(%s, %s, NULL, NULL)", hexadecimal, str(sequencer(FORGED)))
        assert code_of(caught.value) == "FL007"
        guarded.guard().revoke(role, reason="a test")
        run(native, "COMMIT")
    assert guarded.guard().mark().token == 5


def test_a_sequencer_is_the_whole_text(guarded: Guarded) -> None:
    """In a regular expression `$` is also before a line's end."""
    text = str(sign(sequencer(5), SigningKey("key", b"k" * 32)))
    with guarded.database.connect() as native:
        for more in ("\n", "\r\n", " ", "\0"):
            with pytest.raises(pymysql.Error) as caught:
                run(native, "CALL fencelock_seal(%s, 'reports')", text + more)
            assert code_of(caught.value) == "FL011"
        run(native, "CALL fencelock_seal(%s, 'reports')", text)


@pytest.mark.parametrize("call", ["show_rights(NULL)", "read_marks('7265706F727473', NULL, 'alone')"])
def test_g12_a_session_that_keeps_its_rights_or_the_mark_locked_is_ended_by_the_cure(
    guarded: Guarded, role: str, call: str
) -> None:
    guarded.sealed(5)
    guarded.guard().grant(role)
    guarded.database.rows("SET GLOBAL innodb_lock_wait_timeout = 1")
    try:
        with guarded.client("serializable", user=role) as native:
            run(native, "START TRANSACTION")
            run(native, f"CALL fencelock_{call}")
            cured = guarded.guard().unpoison(role, source=HandmadeSource(4), reason="a forger")
            assert (cured.rights, cured.sessions) == ((Right(RESOURCE, role),), 1)
            guarded.wait_for_end(native)
    finally:
        guarded.database.rows("SET GLOBAL innodb_lock_wait_timeout = DEFAULT")
    assert guarded.guard().mark().token == 4


def test_doctor_names_accounts_that_count_as_another(unprotected: Guarded) -> None:
    database, owner = unprotected.database, f"owner_{unprotected.database.name}"
    accounts = [f"'{owner}'@'%'", f"'{owner}'@'10.9.8.7'", f"'{owner}x'@'%'", "''@'10.9.8.7'"]
    for account in accounts:
        database.rows(f"CREATE USER {account}")
    try:
        database.rows(f"GRANT ALL ON {database.name}.* TO {owner}")
        url = database.url(user=owner)
        fencelock.guard(url, resource=RESOURCE, lock=LOCK).protect("reports")
        found = [one.message for one in guard_store(database.url()).examine() if one.code == "namesake"]
    finally:
        for account in accounts:
            database.rows(f"DROP USER {account}")
    assert [message.partition(" ")[0] for message in found] == ["a", f"'{owner}'@'10.9.8.7'"]
    assert "''@'10.9.8.7' may log in by any name" in found[0]


def test_g12_a_user_whose_name_is_the_owners_in_other_letters_is_not_the_owner(guarded: Guarded) -> None:
    guarded.database.rows("CREATE OR REPLACE USER ROOT")
    guarded.database.rows(f"GRANT EXECUTE ON {guarded.database.name}.* TO ROOT")
    try:
        with pytest.raises(RightError):
            guarded.guard(user="ROOT").seal(HandmadeLease(5))
    finally:
        guarded.database.rows("DROP USER ROOT")


def test_g12_an_account_without_a_right_that_knows_the_proof_presents_nothing_by_hand(
    guarded: Guarded, role: str
) -> None:
    """It may write to the table, and has seen what presenting leaves in the session of its holder."""
    shown = guarded.sealed(5).sequencer
    name = RESOURCE.encode().hex().upper()
    with guarded.database.connect() as holder, guarded.database.connect(user=role) as native:
        run(holder, "START TRANSACTION")
        guarded.present(holder, 5)
        [(presented,)] = run(holder, "SELECT @fencelock_presented")
        assert shown.proof not in str(presented)
        for value in (f",{name}.5.{shown.proof},", f",{name}.5.{shown.digest},", presented):
            run(native, "SET @fencelock_presented = %s", value)
            for statement in (
                "UPDATE reports SET value = 'forged'",
                "CALL fencelock_write_effect('reports', 'mail', 'forger', 'done', '')",
            ):
                with pytest.raises(pymysql.Error) as caught:
                    run(native, statement)
                assert code_of(caught.value) == "FL002"
        run(holder, "CALL fencelock_rollback()")


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
            guard.install_keys(Keys((SigningKey("key", b"k" * 32),), ()))
            guard.require_signatures(reason="a test")
        for routine, parameter in (("raise_marks", str(sequencer(6))), ("close_marks", claim_of(5))):
            with pytest.raises(pymysql.Error, match="denied"):
                run(native, f"CALL fencelock_{routine}(%s, %s)", hexadecimal, parameter)
        run(native, "SAVEPOINT fencelock_presented")
        with pytest.raises(pymysql.Error) as caught:
            run(native, "CALL fencelock_write_and_commit(%s, %s, NULL, NULL)", hexadecimal, str(sequencer(6)))
        assert code_of(caught.value) == code
    mark = guard.mark()
    assert (mark.token, mark.is_closed) == (5, False)


def test_doctor_names_rights_that_no_table_needs(guarded: Guarded, role: str) -> None:
    for resource in (RESOURCE, "rep*", "*", "orders", "order*"):
        guarded.guard().grant(role, resource=resource)
    found = guard_store(guarded.database.url(user=role)).examine()
    assert [(one.code, one.resource) for one in found] == [("idle-right", each) for each in ("order*", "orders")]


def test_an_owner_who_may_not_read_the_servers_accounts_grants_unchecked(guarded: Guarded, role: str) -> None:
    guarded.database.rows(f"GRANT ALL ON {guarded.database.name}.* TO {role}")
    guarded.guard(user=role).grant("nobody")
    assert inspect_resources(guarded.database.url()).rights == (Right(RESOURCE, "nobody"),)


def test_ending_sessions_needs_the_right_to_see_them(guarded: Guarded, role: str) -> None:
    with pytest.raises(GuardError, match="may not see the sessions"):
        guard_store(guarded.database.url(user=role)).connect().perform(EndSessions(role))


def test_the_command_that_grants_is_written_for_a_shell_and_no_part_of_a_name_as_the_whole(
    guarded: Guarded, role: str
) -> None:
    with pytest.raises(RightError, match=f"--resource 'orders 7' --role {role}`"):
        guarded.guard("orders 7", user=role).seal(HandmadeLease(5))
    with pytest.raises(RightError, match=r"--resource 'o+…' --role"):
        guarded.guard("o" * 200, user=role).seal(HandmadeLease(5))
