"""What only MySQL has around a source's schema: steps of an installation, rights, settings, and what doctor says."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

import fencelock
from fencelock import SchemaError, SourceError
from fencelock.model import one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores.mysql.connection import install as mysql_install
from fencelock.stores.mysql.guard.store import MySQLGuard
from fencelock.stores.mysql.source import inspection
from fencelock.stores.mysql.source.store import ROUTINES, MySQLSource
from fencelock_lab.servers.mariadb import MariaDBFleet, MariaDBServer
from tests.sql.clients import PublicSource, SqlClient, one_token
from tests.sql.mysql.fix_mysql import Database
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide


# --- the schema -----------------------------------------------------------------------------------


def test_a_source_of_another_version_is_told_though_its_description_has_other_columns(database: Database) -> None:
    MySQLSource(database.url()).install()
    database.rows("CREATE OR REPLACE PROCEDURE fencelock_describe() SELECT 1, 0, 'source', 1, 'history', 1")
    with pytest.raises(SchemaError, match="schema 1, and this version of fencelock has schema 3"):
        one_token(database.url())


def test_an_account_is_not_advised_to_get_a_right_on_a_table(owned: Database) -> None:
    with (
        PublicSource("sync", owned.url(user="worker")) as public,
        pytest.raises(SourceError, match=r"denied .*\): have the account do it .* no right on these tables$"),
    ):
        public.do(public.source.install())


def test_an_installation_that_was_broken_off_anywhere_is_finished_by_the_next(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement of it commits by itself."""
    run = mysql_install._run
    for number in range(1, 40, 5):
        done = []

        def cut(native: Any, statement: str, *parameters: Any, number: int = number, done: list[str] = done) -> Any:
            if len(done) == number:
                raise pymysql.OperationalError(2013, "cut")
            done.append(statement)
            return run(native, statement, *parameters)

        with monkeypatch.context() as patched:
            patched.setattr("fencelock.stores.mysql.connection.install._run", cut)
            try:
                MySQLSource(database.url()).install()
            except fencelock.OutcomeUnknownError:
                with pytest.raises(SchemaError):
                    one_token(database.url())
            else:
                break
        MySQLSource(database.url()).install()
        assert one_token(database.url()) == 1
        for table in ("source", "lock", "waiter", "source_audit"):
            database.rows(f"drop table fencelock_{table}")
    assert number > len([name for file in ROUTINES for name in file])


# --- names and numbers ----------------------------------------------------------------------------


NOT_NAMES = (b"\xff", b"a\xed\xa0\x80", b"\xc3", b"\xf4\x90\x80\x80", b"a\0b", b"", None)


def call_acquire(
    database: Database, lock: bytes | None, holder: bytes | None, claim: str = "claim", mode: str | None = "wait"
) -> None:
    """Acquire as a role does that only has the right to call the routine."""
    parameters = lock, claim, holder, 9_000_000_000_000_000, mode
    with database.connect() as native, native.cursor() as cursor:
        cursor.execute("set time_zone = '+00:00', tx_isolation = 'READ-COMMITTED'")
        cursor.execute(
            "call fencelock_acquire(%s, %s, %s, 600000, %s, %s, 9, 1, (select history_id from fencelock_source))",
            parameters,
        )


@pytest.mark.parametrize("name", NOT_NAMES)
def test_a_name_that_no_client_could_read_is_neither_granted_nor_queued(
    url: str, database: Database, name: bytes | None
) -> None:
    """Otherwise an account that may acquire could break every listing for the operator."""
    one_token(url, "free")
    for lock, holder in ((name, b"holder"), (b"new", name), (b"free", name)):
        for mode in ("wait", None):
            with pytest.raises(pymysql.Error, match=r"1 to 512 bytes of UTF-8|Incorrect string value|a claim needs"):
                call_acquire(database, lock, holder, mode=mode)
    call_acquire(database, b"free", b" ")
    with pytest.raises(pymysql.Error, match=r"1 to 512 bytes of UTF-8|Incorrect string value"):
        call_acquire(database, b"free", name, "another")
    with fencelock.connect(url) as source:
        assert [(info.name, info.holder, info.waiters) for info in source.locks()] == [("free", " ", ())]


def test_t2_at_the_end_of_the_range_the_source_refuses(url: str, database: Database) -> None:
    database.rows("update fencelock_source set token = %s", 2**63 - 2)
    assert one_token(url) == 2**63 - 1
    with pytest.raises(SourceError, match="out of range"):
        one_token(url)
    with pytest.raises(SourceError, match="no token is left"):
        SqlClient(url).raise_epoch()
    assert database.value("select token from fencelock_source") == 2**63 - 1


def test_counts_of_rows_found_are_not_taken_for_rows_changed(url: str, database: Database) -> None:
    """A client with the flag CLIENT.FOUND_ROWS gets the same answers."""
    client = SqlClient(url)
    client.token("lock", "holder")
    client.describe()
    native = client.connection._native
    assert native is not None
    native.close()
    native.client_flag |= pymysql.constants.CLIENT.FOUND_ROWS
    native.connect()
    assert client.acquire("lock", "other") == ask.Busy()
    assert client.acquire("lock", "holder").token == 1
    assert not client.release("lock", "other")
    assert client.release("lock", "holder")
    assert not client.release("lock", "holder")
    client.close()


# --- roles ----------------------------------------------------------------------------------------


def test_doctor_names_an_account_that_has_too_many_rights(owned: Database) -> None:
    def found(user: str) -> set[str]:
        with fencelock.connect(owned.url(user=user)) as source:
            return {finding.code for finding in source.examine()}

    assert found("worker") == set()
    assert found("root") == found("installer") == {"too-many-rights"}
    everywhere = f"{owned.name}.*"
    for grant in (f"update on {owned.name}.fencelock_lock", "insert on *.*", f"drop on {everywhere}"):
        owned.rows(f"grant {grant} to worker")
        assert found("worker") == {"too-many-rights"}, grant
        owned.rows(f"revoke {grant.replace(' on ', ' on ')} from worker")
    owned.rows("grant select, update on mysql.* to worker")
    assert found("worker") == set()


@pytest.mark.parametrize(
    "hidden",
    [
        "fencelock_source (id INT, epoch INT, history_id TEXT, token INT)",
        "fencelock_lock (name VARBINARY(512), token INT, epoch INT, digest TEXT)",
    ],
)
def test_a_sessions_own_temporary_table_does_not_stand_in_for_the_counter_or_a_lock(
    owned: Database, hidden: str
) -> None:
    """Its session would get any token, signed, or a lock that somebody else holds."""
    with hiding(owned, hidden) as cursor:
        for call in (
            "fencelock_acquire('lock', 'claim', 'holder', 600000, 9, 'try', 9, 1, 'history')",
            "fencelock_release('lock', 'claim', 9)",
            """fencelock_renew('[["6c6f636b", "claim", 9]]')""",
        ):
            with pytest.raises(pymysql.Error, match="PARTITION"):
                cursor.execute(f"CALL {call}")


def test_a_sessions_own_temporary_table_does_not_stand_in_for_the_queue(owned: Database) -> None:
    """Its session would overtake, and leave the lock a time from the far future, after which no claim is drawn."""
    call_acquire(owned, b"lock", b"holder")
    call_acquire(owned, b"lock", b"waiter", "another")
    columns = "lock_name VARBINARY(512), ticket INT, digest TEXT, holder TEXT, epoch INT, ttl_ms INT, deadline_us INT"
    with hiding(owned, f"fencelock_waiter ({columns}, born_us BIGINT, headed_us INT)") as cursor:
        cursor.execute("INSERT INTO fencelock_waiter VALUES ('lock', 1, 'dead', 'x', 0, 1, 1, 9e18, 0)")
        with pytest.raises(pymysql.Error, match="PARTITION"):
            cursor.execute("CALL fencelock_acquire('lock', 'third', 'holder', 600000, 9e15, 'try', 9, 1, 'history')")
    with fencelock.connect(owned.url()) as source:
        assert [(info.holder, info.waiters) for info in source.locks()] == [("holder", ("waiter",))]


@pytest.mark.parametrize(
    "hidden",
    [
        "fencelock_source_audit (token BIGINT, holder TEXT, digest TEXT, lock_name TEXT)",
        "fencelock_source_key (key_id INT)",
    ],
)
def test_who_may_break_a_lock_has_the_source_sign_no_other_token(owned: Database, hidden: str) -> None:
    owned.rows("grant execute on procedure fencelock_break to worker")
    with hiding(owned, hidden) as cursor:
        if "audit" in hidden:
            cursor.execute("INSERT INTO fencelock_source_audit VALUES (777, NULL, 'claim', 'lock')")
        with pytest.raises(pymysql.Error, match="PARTITION"):
            cursor.execute("CALL fencelock_break('lock', 'claim', 'worker', 'a test')")


def test_a_break_that_is_repeated_for_another_lock_is_another_break(owned: Database) -> None:
    """It would sign, for a lock that somebody holds, a token that was never issued for it."""
    owned.rows("grant execute on procedure fencelock_break to worker")
    tokens = []
    for lock in ("one", "another", "one"):
        with hiding(owned) as cursor:
            cursor.execute("CALL fencelock_break(%s, 'claim', 'worker', 'a test')", [lock])
            tokens.append(cursor.fetchone()[0])
    assert tokens == [1, 2, 1]


@pytest.mark.parametrize("completion", [0, 1], ids=["", "each COMMIT begins anew"])
@pytest.mark.parametrize(
    "call",
    [
        "describe()",
        "check('lock', 'history', 'proof')",
        "inspect('lock', NULL, 1)",
        "inspect(NULL, '', 9)",
        "release('own', 'own claim', 9)",
        "acquire('lock', 'claim', 'holder', 600000, 9000000000000000, 'wait', 9, 1, 'history')",
    ],
)
def test_a_worker_keeps_nothing_locked_that_it_has_read(owned: Database, call: str, completion: int) -> None:
    """No lease could be renewed meanwhile: it would take what somebody holds."""
    owned.rows("grant execute on procedure fencelock_check to worker")
    owned.rows("grant execute on procedure fencelock_inspect to worker")
    with fencelock.connect(owned.url()) as source:
        source.add_key()
    call_acquire(owned, b"lock", b"holder")
    call_acquire(owned, b"own", b"worker", one_way(one_way("own claim")))
    with hiding(owned) as cursor:
        cursor.execute(f"SET completion_type = {completion}")
        # A level for one transaction is not the session's, which some routines look at.
        cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        if not call.startswith("acquire"):
            cursor.execute("START TRANSACTION")
        cursor.execute(f"CALL fencelock_{call}")
        while cursor.nextset():
            pass
        for table in ("source", "lock"):
            assert owned.rows(f"SELECT 1 FROM fencelock_{table} FOR UPDATE NOWAIT")


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_worker_that_does_not_read_its_answer_keeps_no_row_of_others_locked(owned: Database, level: str) -> None:
    call_acquire(owned, b"lock", b"holder")
    leases = [[b"lock".hex(), "c" * 32], *([f"{number:08x}", "c" * 60] for number in range(60_000))]
    with owned.connect(user="worker") as native, native.cursor(pymysql.cursors.SSCursor) as unread:
        native.query("SET time_zone = '+00:00', tx_isolation = 'READ-COMMITTED'")
        native.query(f"SET TRANSACTION ISOLATION LEVEL {level}")
        unread.execute(f"CALL fencelock_renew('{json.dumps(leases)}')")
        state = f"SELECT state FROM information_schema.processlist WHERE id = {native.thread_id()}"
        wait_until(lambda: owned.value(state) == "Writing to net")
        for table in ("source", "lock"):
            assert owned.rows(f"SELECT 1 FROM fencelock_{table} FOR UPDATE NOWAIT")
        assert len(list(unread)) == len(leases)


@contextmanager
def hiding(owned: Database, *tables: str) -> Iterator[Any]:
    """Open a worker's session, with temporary tables of these definitions."""
    owned.rows(f"grant create temporary tables on {owned.name}.* to worker")
    with owned.connect(user="worker") as native, native.cursor() as cursor:
        cursor.execute("set time_zone = '+00:00', tx_isolation = 'READ-COMMITTED'")
        for table in tables:
            cursor.execute(f"CREATE TEMPORARY TABLE {table}")
        yield cursor


def test_routines_whose_account_is_gone_are_made_anew_by_the_next_installation(owned: Database) -> None:
    """What was granted on them is kept."""
    url = owned.url(user="worker")
    assert one_token(url) == 1
    owned.rows("drop user installer")
    try:
        with fencelock.connect(url) as source:
            with pytest.raises(SchemaError, match=r"account that is gone .*run `fencelock install`") as caught:
                source.lock("lock").acquire()
            assert caught.value.definite
            [finding] = source.examine()
            assert (finding.code, "fencelock install" in finding.message) == ("source-refused", True)
        MySQLSource(owned.url()).install()
        assert one_token(url) == 2
    finally:
        owned.rows("create user installer")


def test_routines_that_were_dropped_are_made_anew_by_the_next_installation(url: str, database: Database) -> None:
    assert one_token(url) == 1
    for routine in ("describe", "acquire"):
        database.rows(f"drop procedure fencelock_{routine}")
    MySQLSource(url).install()
    assert one_token(url) == 2


def test_an_installation_is_refused_where_a_table_is_not_of_fencelock(database: Database) -> None:
    database.rows("create table fencelock_lock (name varchar(40), colour int)")
    store = MySQLSource(database.url())
    for _ in range(2):
        with pytest.raises(SchemaError, match=r"fencelock_lock that is not fencelock's own .*colour, name.*rename"):
            store.install()
    database.rows("rename table fencelock_lock to theirs")
    store.install()
    assert one_token(database.url()) == 1
    database.rows("drop table fencelock_waiter")
    with pytest.raises(SchemaError, match="lost its table fencelock_waiter"):
        store.install()


# --- settings -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("innodb_flush_log_at_trx_commit = 0", "unflushed"),
        ("innodb_flush_log_at_trx_commit = 2", "unflushed"),
        ("read_only = on", "standby"),
    ],
)
def test_doctor_names_a_setting_that_would_break_the_promise(own_mysql: MariaDBServer, setting: str, code: str) -> None:
    MySQLSource(own_mysql.url()).install()
    with fencelock.connect(own_mysql.url()) as source:
        before = {finding.code for finding in source.examine()}
        assert before == {"too-many-rights"}
        own_mysql.rows(f"set global {setting}")
        assert {finding.code for finding in source.examine()} == before | {code}


def test_doctor_names_what_a_server_was_started_with(mysql_fleet: MariaDBFleet) -> None:
    server = mysql_fleet.new_server()
    server.settings |= {
        "log_bin": "on", "sync_binlog": 0, "skip_innodb_doublewrite": 1,
        "sysdate_is_now": 1,
    }  # fmt: skip
    with server:
        MySQLSource(server.url()).install()
        with fencelock.connect(server.url()) as source:
            found = {finding.code for finding in source.examine()}
        assert found == {"unflushed", "torn-pages", "frozen-clock", "too-many-rights"}
        server.rows("create database shop")
        server.rows("create table shop.report (id int primary key)")
        url = server.url(database="shop")
        fencelock.guard(url, resource="reports", lock="nightly").protect("report")
        (unflushed,) = (one for one in MySQLGuard(url).examine() if one.code == "unflushed")
        assert unflushed.message.startswith("sync_binlog is 0: after a power cut the server rolls back")


def test_what_doctor_cannot_see_is_no_finding(url: str) -> None:
    assert not inspection._may_change(["GRANT USAGE ON *.* TO `a`@`%`", "GRANT PROXY ON ''@'%' TO 'a'@'%'"], "db")


@pytest.mark.parametrize(
    "settings",
    [
        {"transaction_isolation": "SERIALIZABLE", "default_time_zone": "+05:45", "autocommit": 0},
        {"sql_mode": "ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES", "completion_type": 1},
        {"character_set_server": "latin1", "collation_server": "latin1_swedish_ci", "lower_case_table_names": 1},
        {"log_bin": "on", "binlog_format": "MIXED", "sync_binlog": 1},
        {"group_concat_max_len": 4, "max_sp_recursion_depth": 0},
        {"sql_mode": "ORACLE,HIGH_NOT_PRECEDENCE", "sql_safe_updates": 1},
        {"character_set_server": "utf16", "collation_server": "utf16_bin"},
    ],
    ids=["isolation", "modes", "characters", "binary log", "limits", "other modes", "wide characters"],
)
def test_what_a_server_has_set_by_default_changes_nothing(
    mysql_fleet: MariaDBFleet, settings: dict[str, str | int]
) -> None:
    server = mysql_fleet.new_server()
    server.settings |= settings
    with server:
        server.rows("create database shop")
        url = server.url(database="shop")
        MySQLSource(url).install()
        MySQLSource(url).install()
        for kind in ("sync", "async"):
            with PublicSource(kind, url) as public:
                lock = public.source.lock("ünï\\x'", ttl=30.0, holder="日本語\\'")
                lease = public.do(lock.acquire())
                assert public.do(lock.acquire(timeout=0.05)) is None
                assert public.do(public.source.info("ünï\\x'")).holder == "日本語\\'"
                assert public.do(lease.release())
                second = public.do(lock.acquire())
                assert second.token > lease.token
                public.do(second.release())
        client = SqlClient(url)
        client.token("lock", "holder")
        for number in range(3):
            client.acquire("lock", str(number), may_wait=True)
        assert len(client.ask(ask.Inspect("lock")).waiters) == 3
        assert set(client.ask(ask.Renew((("lock", "holder"),))).remaining_ms) == {"holder"}
        assert client.raise_epoch().epoch == 2
        client.close()


def test_a_session_that_would_decide_wrongly_is_refused_by_the_routines(url: str, database: Database) -> None:
    one_token(url)
    calls = (
        "call fencelock_acquire('lock', 'c', 'h', 1000, 9e15, 'try', 1, 1, 'x')",
        "call fencelock_release('lock', 'c', 0)",
        "call fencelock_renew('[]')",
        "call fencelock_break('lock', 'c', 'h', 'a test')",
        "call fencelock_purge()",
        "call fencelock_raise_epoch('x', 'y', 0, 'h', 'a test')",
    )
    for setting in ("time_zone = '+01:00'", "tx_isolation = 'REPEATABLE-READ'"):
        with database.connect() as native, native.cursor() as cursor:
            cursor.execute("set time_zone = '+00:00', tx_isolation = 'READ-COMMITTED'")
            cursor.execute(f"set {setting}")
            for call in calls:
                with pytest.raises(pymysql.OperationalError, match="a session needs time_zone"):
                    cursor.execute(call)


def test_h1_a_clock_that_stands_still_in_a_statement_moves_between_them(mysql_fleet: MariaDBFleet) -> None:
    """With sysdate-is-now the time is read when a routine's statement begins: doctor names it."""
    server = mysql_fleet.new_server()
    server.settings["sysdate_is_now"] = 1
    with server:
        MySQLSource(server.url()).install()
        assert one_token(server.url()) == 1


def test_a_full_queue_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelock.stores.mysql.source.codec.MAX_WAITERS", 2)
    client = SqlClient(url)
    client.token("lock", "holder")
    for number in range(2):
        assert isinstance(client.acquire("lock", str(number), may_wait=True), ask.Queued)
    with pytest.raises(SourceError, match="has 2 waiters, the most"):
        client.acquire("lock", "2", may_wait=True)
    client.release("lock", "0")
    assert isinstance(client.acquire("lock", "3", may_wait=True), ask.Queued)
    client.close()
