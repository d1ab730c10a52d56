"""Least privilege on PostgreSQL: what a holder's role needs, and what it cannot do with it."""

from base64 import urlsafe_b64encode
from dataclasses import replace

import psycopg
import pytest
from psycopg.errors import CharacterNotInRepertoire, InsufficientPrivilege, InvalidParameterValue

import fencelock
from fencelock import GuardError
from fencelock.stores.postgres.connection import install
from fencelock.stores.postgres.guard.store import FUNCTIONS, PROTECTION, SCHEMA
from fencelock.stores.postgres.source import store as source
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.postgres import PostgresServer
from tests.fix_servers import fresh_name
from tests.sql.guarded import TABLE, Guarded
from tests.sql.postgres.dialect import REFUSED
from tests.sql.postgres.fix_postgres import Database
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, sequencer

pytestmark = pytest.mark.server_wide

APPLICATION = "application"


@pytest.fixture
def application(guarded: Guarded) -> Guarded:
    """The database with a role that may write the table, and has what the reference says that a holder needs."""
    with guarded.database.connect() as native:
        native.execute(
            f"DO $$ BEGIN CREATE ROLE {APPLICATION} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
        native.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON reports TO {APPLICATION}")
        native.execute(f"GRANT USAGE ON SCHEMA fencelock TO {APPLICATION}")
    guarded.guard().grant(APPLICATION)
    return guarded


def guard_of(application: Guarded, *resources: str) -> fencelock.Guard:
    return application.guard(*resources, user=APPLICATION)


def test_a_holder_needs_usage_on_the_schema_and_a_right_and_no_more(application: Guarded) -> None:
    guard, lease = guard_of(application), HandmadeLease(5)
    with guard.transaction(lease) as native:
        native.execute("UPDATE reports SET value = 'by the application'")
    assert guard.mark().token == 5
    with application.database.connect(user=APPLICATION) as native, native.transaction():
        guard.check(lease, connection=native)
        application.present(native, 5)
        native.execute("UPDATE reports SET value = 'in its own transaction'")
    guard.close(lease)
    assert application.value() == "in its own transaction"


def test_a_role_without_usage_is_refused_by_the_trigger_and_learns_what_it_needs(application: Guarded) -> None:
    with application.database.connect() as native:
        native.execute(f"REVOKE USAGE ON SCHEMA fencelock FROM {APPLICATION}")
    with application.database.connect(user=APPLICATION) as native, pytest.raises(psycopg.Error, match=REFUSED):
        native.execute("DELETE FROM reports")
    with pytest.raises(GuardError, match="a holder needs USAGE on the schema fencelock"):
        guard_of(application).seal(HandmadeLease(5))


FORBIDDEN = [
    "SELECT * FROM fencelock.mark",
    "SELECT digest FROM fencelock.mark",
    "SELECT secret FROM fencelock.guard",
    "SELECT fencelock.secret()",
    "SELECT fencelock.note_name('reports')",
    "SELECT fencelock.is_presented('reports')",
    "SELECT * FROM fencelock.guard_audit",
    "SELECT * FROM fencelock.observation",
    "INSERT INTO fencelock.mark (resource, lock) VALUES ('mine', 'x')",
    "UPDATE fencelock.mark SET token = 1",
    "DELETE FROM fencelock.mark",
    "TRUNCATE fencelock.mark",
    "DELETE FROM fencelock.protection",
    "SELECT fencelock.write_audit('w', 'lower', 'reports', 5, 1, 'r')",
    "SELECT fencelock.change_mark('reports', 'x', 1, NULL, NULL, NULL, false, NULL, false, 1)",
    "SELECT fencelock.make_mark('mine', 'x')",
    "SELECT fencelock.grant_right('*', 'application')",
    "INSERT INTO fencelock.guard_right VALUES ('*', 'application')",
    "DELETE FROM fencelock.guard_right",
    "SELECT fencelock.require_signature('reports', false)",
    "SELECT * FROM fencelock.guard_key",
    "DELETE FROM fencelock.guard_key",
    "INSERT INTO fencelock.guard_key VALUES ('k', '', '', NULL)",
    "SELECT fencelock.unprotect_table('reports')",
    "SELECT fencelock.protect_table('reports', 'mine', 'observe')",
    "SELECT fencelock.hold_mark('reports', true)",
    "SELECT fencelock.count_observed('reports', 't', 'insert')",
    "DROP TRIGGER fencelock ON reports",
    "ALTER TABLE reports DISABLE TRIGGER fencelock",
    "SET session_replication_role = replica",
    "CREATE OR REPLACE FUNCTION fencelock.enforce() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
    "CREATE TABLE fencelock.mine (id int)",
]


def test_a_holder_can_neither_read_secrets_nor_change_what_protects(application: Guarded) -> None:
    application.sealed(5)
    with application.database.connect(user=APPLICATION) as native:
        for statement in FORBIDDEN:
            with pytest.raises(InsufficientPrivilege):
                native.execute(statement)


HIDDEN_SOURCE = [
    "SELECT setval('fencelock.token', 1)",
    "SELECT nextval('fencelock.token')",
    "SELECT fencelock.purge()",
    "SELECT digest FROM fencelock.lock",
    "SELECT digest FROM fencelock.waiter",
    "SELECT * FROM fencelock.signing_key",
    "SELECT fencelock.sign('k', 's', 'h', 1, 'p', 'l')",
    "DELETE FROM fencelock.witness",
    "UPDATE fencelock.source SET bound = 1",
    "SELECT setval(pg_get_serial_sequence('fencelock.waiter', 'ticket'), 1)",
    "CREATE TABLE fencelock.mine ()",
]


@pytest.mark.parametrize("grantee", [APPLICATION, "PUBLIC"])
def test_the_default_privileges_of_the_database_give_nothing_away(database: Database, grantee: str) -> None:
    with database.connect() as native:
        native.execute(
            f"DO $$ BEGIN CREATE ROLE {APPLICATION} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
        for kind in ("SCHEMAS", "TABLES", "SEQUENCES", "FUNCTIONS"):
            native.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO {grantee}")
        for statement in TABLE:
            native.execute(statement)
        PostgresSource(database.url()).install()
        fencelock.guard(database.url(), resource=RESOURCE, lock=LOCK).protect("reports")
        native.execute(f"GRANT USAGE ON SCHEMA fencelock TO {APPLICATION}")
        # The table is not fencelock's, and has these default privileges.
        native.execute(f"REVOKE TRIGGER ON reports FROM {grantee}")
    assert guard_store(database.url(user=APPLICATION)).examine() == []
    assert PostgresSource(database.url(user=APPLICATION)).examine() == []
    with database.connect(user=APPLICATION) as native:
        for statement in (*FORBIDDEN, *HIDDEN_SOURCE):
            with pytest.raises(InsufficientPrivilege):
                native.execute(statement)


def test_every_function_that_runs_with_its_owners_rights_has_a_fixed_path_or_complete_names(
    application: Guarded,
) -> None:
    rows = application.database.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'fencelock'::regnamespace AND prosecdef"
        " AND coalesce(array_to_string(proconfig, ' '), '') NOT LIKE '%%search_path=%%' ORDER BY 1"
    )
    assert [name for (name,) in rows] == ["confirm", "enforce", "note_name", "observe", "offer"]


def test_whatever_runs_with_its_owners_rights_and_may_hold_a_secret_prints_no_plan(application: Guarded) -> None:
    PostgresSource(application.database.url()).install()
    rows = application.database.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'fencelock'::regnamespace AND prosecdef"
        " AND coalesce(array_to_string(proconfig, ' '), '') NOT LIKE '%%debug_print_plan=off%%' ORDER BY 1"
    )
    assert [name for (name,) in rows] == ["confirm", "enforce", "observe", "offer"]


def test_only_the_owner_may_call_what_is_not_for_holders(application: Guarded) -> None:
    rows = application.database.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'fencelock'::regnamespace"
        " AND has_function_privilege(%s, oid, 'EXECUTE') ORDER BY 1",
        APPLICATION,
    )
    assert [name for (name,) in rows] == [
        *(
            "base64url",
            "begin_effect",
            "close_marks",
            "confirm",
            "first_argument",
            "limit_time",
            "mark_key",
            "offer",
            "one_way",
        ),
        *("present", "raise_marks", "read_effect", "read_marks", "record_refusal", "seal", "show_marks"),
        *("show_observations", "signature_of", "withdraw", "write_effect"),
    ]


def test_g6_the_setting_that_presenting_leaves_has_a_secret_name(application: Guarded) -> None:
    # A reader of it could put it back after a savepoint had undone it, and the lock of the mark with it.
    application.sealed(5)
    with application.database.connect(user=APPLICATION) as native, native.transaction():
        application.present(native, 5)
        for listed in ("SHOW ALL", "SELECT name FROM pg_settings"):
            assert not [name for name, *_ in native.execute(listed) if name.startswith("fencelock")]
        with pytest.raises(InsufficientPrivilege):
            native.execute("SELECT fencelock.note_name('reports')")


@pytest.mark.parametrize(
    "call", ["withdraw('reports')", "present(p_sequencer, 'reports')", "raise_marks(p_sequencer, 'reports')"]
)
def test_g6_no_error_of_the_server_shows_the_name_of_the_setting(application: Guarded, call: str) -> None:
    """In a parallel operation the server names the setting that it does not set. Any caller can be in one."""
    application.sealed(5)
    name = application.database.value("SELECT fencelock.note_name('reports')")
    with application.database.connect(user=APPLICATION) as native:
        is_newer = native.info.server_version >= 160000
        native.execute(f"SET {'debug_parallel_query' if is_newer else 'force_parallel_mode'} = on")
        native.execute(
            "CREATE FUNCTION pg_temp.call(p_sequencer text) RETURNS void LANGUAGE plpgsql PARALLEL SAFE AS"
            f" $$ BEGIN PERFORM fencelock.{call}; END $$"
        )
        with native.transaction():
            native.execute("SELECT pg_current_xact_id()")  # Its assignment would be refused first.
            with pytest.raises(psycopg.Error, match="during a parallel operation") as caught:
                native.execute("SELECT pg_temp.call(%s) FROM pg_class", (str(sequencer(5)),))
    assert name not in str(caught.value)


def test_g6_no_plan_that_a_session_may_see_holds_the_secret(application: Guarded) -> None:
    application.sealed(5)
    seen: list[str] = []
    with application.database.connect(user=APPLICATION) as native:
        native.add_notice_handler(lambda notice: seen.append(f"{notice.message_primary} {notice.message_detail}"))
        native.execute("SET client_min_messages = log; SET debug_print_plan = on")
        with native.transaction():
            application.present(native, 5)
            native.execute("DELETE FROM reports")
            native.execute("SELECT fencelock.confirm('reports'), fencelock.withdraw('reports')")
        native.execute("SELECT fencelock.seal(%s, 'reports')", (str(sequencer(6)),))
    assert seen
    secret = application.database.value("SELECT secret FROM fencelock.guard")
    name = application.database.value("SELECT fencelock.note_name('reports')")
    for hidden in (secret, name):
        # A plan shows the bytes of a constant as numbers, and breaks its lines within them.
        assert "".join(map(str, hidden.encode())) not in "".join("".join(seen).split())


def test_what_a_session_sees_of_a_mark_admits_nothing(application: Guarded) -> None:
    """The mark shows H(proof). As a proof or as a claim, it is refused."""
    application.sealed(5)
    with application.database.connect(user=APPLICATION) as native:
        [(digest,)] = native.execute("SELECT digest FROM fencelock.show_marks(NULL)").fetchall()
        assert digest == sequencer(5).digest
        stolen = replace(sequencer(5), proof=digest)
        with pytest.raises(psycopg.Error) as caught:
            native.execute("SELECT fencelock.present(%s, 'reports')", (str(stolen),))
        assert caught.value.sqlstate == "FL003"
        native.execute("SELECT fencelock.close_marks(%s, 'reports')", (digest,))
        native.execute("SELECT fencelock.close_marks(%s, 'reports')", (sequencer(5).proof,))
        assert not guard_of(application).mark().is_closed
        for credential in (sequencer(4), sequencer(5, claim="rival-claim"), sequencer(6)):
            with pytest.raises(psycopg.Error) as caught:
                native.execute("SELECT fencelock.present(%s, 'reports')", (str(credential),))
            assert sequencer(5).proof not in str(caught.value)
            assert credential.proof not in str(caught.value)


def test_a_holder_cannot_lower_or_move_a_mark(application: Guarded) -> None:
    application.sealed(5)
    with application.database.connect(user=APPLICATION) as native:
        for changed in (
            sequencer(4),
            sequencer(5, claim="mine"),
            sequencer(5, history_id="another"),
            sequencer(9, lock="another"),
            sequencer(9, source_id="another"),
        ):
            with pytest.raises(psycopg.Error, match="a mark only goes up") as caught:
                native.execute("SELECT fencelock.raise_marks(%s, 'reports')", (str(changed),))
            assert caught.value.sqlstate == "FL009"


SETTINGS = [
    "bytea_output=escape",
    "standard_conforming_strings=off",
    "search_path=pg_temp",
    "timezone=Asia/Kathmandu",
    "datestyle=German",
    "intervalstyle=sql_standard",
    "quote_all_identifiers=on",
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("lock", ["zz6162", "ünï\\x", "\\x6162"])
def test_what_a_role_has_set_by_default_changes_nothing(database: Database, setting: str, lock: str) -> None:
    url = database.url(options=f"-c {setting}")
    guard, lease = fencelock.guard(url, resource="re\\port", lock=lock), HandmadeLease(5, lock=lock)
    with database.connect() as native:
        native.execute("CREATE SCHEMA pgapp; CREATE TABLE pgapp.reports (id int) PARTITION BY RANGE (id)")
        native.execute("CREATE TABLE pgapp.report_1 PARTITION OF pgapp.reports DEFAULT")
    guard.protect("pgapp.reports")
    assert [finding.message for finding in guard_store(url).examine() if finding.code != "powerful-role"] == []
    for number in range(2):
        with guard.transaction(lease) as own:
            own.execute("INSERT INTO pgapp.reports VALUES (%s)", (number,))
    with psycopg.connect(url) as own, guard.check(lease, connection=own):
        own.execute("DELETE FROM pgapp.reports WHERE id = 0")
    with psycopg.connect(url, autocommit=True) as native, native.transaction():
        native.execute("SELECT fencelock.present(%s, %s)", (str(lease.sequencer), "re\\port"))
        native.execute("INSERT INTO pgapp.report_1 VALUES (7)")
    mark = guard.mark()
    assert (mark.lock, mark.resource, mark.token) == (lock, "re\\port", 5)
    [protection] = fencelock.inspect_resources(url).protections
    assert protection.resource == "re\\port"
    guard.raise_to(9, reason="a test")
    with psycopg.connect(url, autocommit=True) as native:
        with pytest.raises(psycopg.Error, match=REFUSED):
            native.execute("DELETE FROM pgapp.reports")
        with pytest.raises(InvalidParameterValue, match="not a sequencer"):
            native.execute("SELECT fencelock.present(%s, 'r')", (str(lease.sequencer).replace(".", "-"),))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_made_inside_a_transaction_changes_nothing(guarded: Guarded, setting: str) -> None:
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        native.execute("SELECT set_config(%s, %s, true)", tuple(setting.split("=")))
        native.execute("UPDATE public.reports SET value = %s", (setting,))
    assert guarded.value() == setting


def test_no_function_has_a_backslash_which_settings_could_give_another_meaning() -> None:
    for texts in (install.COMMON, SCHEMA, *FUNCTIONS, PROTECTION, source.SCHEMA, *source.FUNCTIONS):
        assert [name for name in texts if "\\" in texts[name]] == []


NO_NAMES = [b"\xff\xff", b"a\0", b"\xed\xa0\x80", b"", b"x" * 513]
"""No UTF-8, U+0000, a lone surrogate, nothing, too much: no client could use these."""


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SQL_ASCII"])
def test_a_holder_cannot_make_a_mark_that_operators_cannot_read(postgres: PostgresServer, encoding: str) -> None:
    name = fresh_name(encoding.lower())
    postgres.rows(f"create database {name} encoding '{encoding}' template template0")
    database = Database(postgres, name)
    guard = fencelock.guard(database.url(), resource="nächtlich", lock="bücher")
    with database.connect() as native:
        native.execute("CREATE TABLE reports (id int)")
    guard.protect("reports")
    guard.seal(HandmadeLease(5, lock="bücher"))
    with database.connect() as native:
        for bad in NO_NAMES:
            if bad:
                *parts, _, signature = str(sequencer(6)).split(".")
                poisoned = ".".join((*parts, urlsafe_b64encode(bad).decode().rstrip("="), signature))
                refuse(native, "SELECT fencelock.seal(%s, 'new')", poisoned)
                refuse(native, "SELECT fencelock.raise_marks(%s, 'new')", poisoned)
        for bad in ("", "x" * 513):
            refuse(native, "SELECT fencelock.seal(%s, %s)", str(sequencer(6)), bad)
            refuse(native, "SELECT fencelock.record_refusal(%s, 'stale')", bad)
        if encoding == "SQL_ASCII":
            refuse(native, "SELECT fencelock.seal(%s, E'\\xff')", str(sequencer(6)))
            refuse(native, "SELECT fencelock.record_refusal(E'\\xff', 'stale')")
            refuse(native, "SELECT fencelock.seal(E'\\xff', 'new')")
    assert [(mark.resource, mark.lock, mark.token) for mark in fencelock.inspect_resources(database.url()).marks] == [
        ("nächtlich", "bücher", 5)
    ]
    postgres.rows(f"drop database {name} with (force)")


def refuse(native: psycopg.Connection, statement: str, *parameters: object) -> None:
    with pytest.raises((InvalidParameterValue, CharacterNotInRepertoire)) as caught:
        native.execute(statement.encode(), parameters)
    assert sequencer(6).proof not in str(caught.value)


def test_operators_work_needs_the_owner_and_says_so(application: Guarded) -> None:
    guard = guard_of(application)
    for attempt in (
        lambda: guard.raise_to(9, reason="a test"),
        lambda: guard.unprotect(reason="a test"),
        lambda: guard.protect("reports", mode="observe"),
    ):
        with pytest.raises(GuardError, match="to protect tables and move marks, a role has to be the schema's owner"):
            attempt()


def test_a_member_of_the_owner_may_protect_and_operate(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("DO $$ BEGIN CREATE ROLE migrator LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        native.execute(f"GRANT CREATE ON DATABASE {guarded.database.name} TO migrator")
        native.execute("DROP SCHEMA fencelock CASCADE; DROP TABLE reports; GRANT CREATE ON SCHEMA public TO migrator")
    with guarded.database.connect(user="migrator") as native:
        native.execute("CREATE TABLE reports (id int, value text)")
    guard = guarded.guard(user="migrator")
    guard.protect("reports")
    guard.raise_to(9, reason="a test")
    with guarded.database.connect() as native, pytest.raises(psycopg.Error, match=REFUSED):
        native.execute("INSERT INTO reports VALUES (1, 'x')")
    assert guarded.database.value("SELECT role FROM fencelock.guard_audit") == "migrator"


def test_no_claim_and_no_proof_is_in_a_log_of_the_server(application: Guarded) -> None:
    """Statements travel with their parameters beside them, so that a failing one is logged without its proof."""
    guard, lease = guard_of(application), HandmadeLease(5, claim="a-secret-of-the-test")
    other = HandmadeLease(9, claim="another-secret-of-the-test", source_id="another")
    third = sequencer(3, claim="third-secret-of-the-test")
    with guard.transaction(lease):
        pass
    with pytest.raises(fencelock.WrongLockError):
        guard_of(application).seal(other)
    guard.close(lease)
    with application.database.connect() as native, pytest.raises(psycopg.Error):
        native.execute("SELECT fencelock.present(%s, 'reports')", (str(third),))
    log = application.database.server.log
    assert "secret-of-the-test" not in log
    assert not [shown.proof for shown in (lease.sequencer, other.sequencer, third) if shown.proof in log]


def test_doctor_by_the_applications_own_role_finds_nothing(application: Guarded) -> None:
    assert guard_store(application.database.url(user=APPLICATION)).examine() == []


def test_doctor_trusts_the_guards_functions_in_the_database_of_a_source(application: Guarded) -> None:
    PostgresSource(application.database.url()).install()
    findings = [finding.message for finding in PostgresSource(application.database.url(user=APPLICATION)).examine()]
    assert not [message for message in findings if "search_path" in message], findings
    with application.database.connect() as owner:
        owner.execute("CREATE FUNCTION fencelock.loose() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'")
    findings = [finding.message for finding in PostgresSource(application.database.url(user=APPLICATION)).examine()]
    assert any("['loose']" in message for message in findings), findings
