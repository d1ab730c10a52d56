"""`fencelock protect`, `unprotect`, `rebind` and `marks`, on real files."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock.cli import doctor
from fencelock.stores.sqlite.guard.store import SQLiteGuard
from tests.cli.program import Program
from tests.support.guards import ask, make_file, plain, url_of, write

__all__ = ["program"]
from tests.cli.program import program

LOCK = "nightly"


@pytest.fixture
def app(program: Program) -> str:
    """The URL of a database with two tables, in the program's folder."""
    return url_of(make_file(program.folder / "app.db", "reports", "lines"))


@pytest.fixture
def file(program: Program, app: str) -> Path:
    return program.folder / "app.db"


def protect(program: Program, app: str, *words: str) -> Any:
    return program.json("protect", app, "--resource", "reports", "--lock", LOCK, "--table", "reports", *words)


def is_refused(file: Path) -> bool:
    with plain(file) as connection:
        try:
            connection.execute("UPDATE reports SET value = 'unfenced'")
        except sqlite3.IntegrityError:
            return True
    return False


def test_protect_makes_the_file_refuse_writes(program: Program, app: str, file: Path) -> None:
    done = program.inside(
        "protect", app, "--resource", "reports", "--lock", LOCK, "--table", "reports", "--table", "main.lines"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "resource reports belongs to lock nightly",
        "table reports: refuses writes that present no token",
        "table lines: refuses writes that present no token",
    ]
    assert is_refused(file)


def test_protect_prints_json_with_tokens_as_strings(program: Program, app: str) -> None:
    assert protect(program, app) == [
        {
            "resource": "reports",
            "lock": LOCK,
            "token": None,
            "source_id": None,
            "history_id": None,
            "closed": False,
            "set_by": None,
            "tables": [{"table": "reports", "mode": "enforce"}],
            "observed": [],
            "rights": None,
            "signatures_required": False,
        }
    ]


def test_from_observing_to_enforcing(program: Program, app: str, file: Path) -> None:
    protect(program, app, "--mode", "observe")
    assert not is_refused(file)
    done = program.inside("marks", app)
    assert "reports   -     nobody yet  nightly  reports (observe)" in done.stdout
    assert "Let through while observing:" in done.stdout
    refused = program.inside("protect", app, "--resource", "reports", "--lock", LOCK, "--table", "reports")
    assert refused.returncode == 1
    assert "--source URL" in refused.stderr
    with program.source() as source:
        lease = source.lock(LOCK).acquire()
        assert lease is not None
        (described,) = protect(program, app, "--source", program.url)
        assert described["token"] == str(lease.token)
        assert described["observed"][0] | {"first_at": "", "last_at": ""} == {
            "table": "reports",
            "kind": "update",
            "times": 1,
            "first_at": "",
            "last_at": "",
            "role": None,
            "application": None,
            "address": None,
        }
        lease.release()
    assert is_refused(file)


def test_marks_shows_holders_and_tables(program: Program, app: str) -> None:
    nothing = f"{app} holds no marks: `fencelock protect`, or the first seal, creates one\n"
    assert program.inside("marks", app).stdout == nothing
    protect(program, app)
    with program.source() as source, source.lock(LOCK) as lease:
        guard = fencelock.guard(app, resource="reports", lock=LOCK)
        write(guard, lease, "held")
        text = program.inside("marks", app).stdout
        assert "RESOURCE  MARK  OF       LOCK     TABLES" in text
        assert f"reports   {lease.token}     a lease  nightly  reports (enforce)" in text
        (described,) = program.json("marks", app, "--resource", "reports")["resources"]
        assert (described["token"], described["set_by"], described["closed"]) == (str(lease.token), "lease", False)
        assert described["source_id"] == source.describe().source_id
        assert lease.sequencer.proof not in text + json.dumps(described)
        guard.close(lease)
        assert "a lease, closed" in program.inside("marks", app).stdout


def test_marks_of_an_unknown_resource_exits_with_1(program: Program, app: str) -> None:
    protect(program, app)
    done = program.inside("marks", app, "--resource", "nosuch")
    assert (done.returncode, done.stdout) == (1, "")
    assert "knows no resource 'nosuch'" in done.stderr


def test_a_mark_is_lowered_and_raised_with_a_reason(program: Program, app: str, file: Path) -> None:
    protect(program, app)
    fencelock.guard(app, resource="reports", lock=LOCK).raise_to(2**62, reason="poison", implausible=True)
    lowered = program.json("marks", app, "--resource", "reports", "--lower", "41", "--reason", "poisoned by a test")
    assert lowered["resources"][0]["token"] == "41"
    with program.source() as source:
        for _ in range(43):
            lease = source.lock(LOCK).acquire()
            assert lease is not None
            lease.release()
    raised = program.json("marks", app, "--raise-to", program.url, "--reason", "restored")
    token, source_id = raised["resources"][0]["token"], raised["floors"][0]["source_id"]
    assert int(token) >= 43
    rows = ask(file, "SELECT action, to_token, reason FROM fencelock_audit")
    assert rows == [
        ("raise-to", 2**62, "poison"),
        ("lower", 41, "poisoned by a test"),
        ("floor", int(token), f"restored (source {source_id})"),
        ("raise-to", int(token), "restored"),
    ]


def test_raise_to_without_a_resource_raises_all(program: Program, app: str) -> None:
    protect(program, app)
    program.json("protect", app, "--resource", "lines", "--lock", "other", "--table", "lines")
    with program.source() as source, source.lock(LOCK) as lease:
        raised = program.json("marks", app, "--raise-to", program.url, "--reason", "restored")
        assert {one["token"] for one in raised["resources"]} == {str(lease.token)}


def test_raise_to_raises_all_of_the_source_and_names_the_others(program: Program, app: str) -> None:
    other = f"sqlite:///{program.folder}/other.db"
    for resource, url in ("a", program.url), ("b", other), ("c", program.url):
        with fencelock.connect(url) as source, source.lock(resource) as lease:
            fencelock.guard(app, resource=resource, lock=resource).seal(lease)
    with fencelock.connect(program.url) as source:
        last_token = str(source.describe().last_token)
    raised = program.inside("marks", app, "--raise-to", program.url, "--reason", "restored", "--json")
    assert raised.returncode == 0, raised.stderr
    marks = {one["resource"]: one["set_by"] for one in json.loads(raised.stdout)["resources"]}
    assert marks == {"a": "operator", "b": "lease", "c": "operator"}
    assert {one["token"] for one in json.loads(raised.stdout)["resources"] if one["set_by"] == "operator"} == {
        last_token
    }
    assert "other sources: b (source " in raised.stderr
    unknown = f"sqlite:///{program.folder}/unknown.db"
    fencelock.connect(unknown).install()
    refused = program.inside("marks", app, "--raise-to", unknown, "--reason", "restored")
    assert refused.returncode == 1
    assert "resource 'a' is bound to source" in refused.stderr


def test_unprotect_allows_every_writer(program: Program, app: str, file: Path) -> None:
    protect(program, app)
    done = program.inside("unprotect", app, "--resource", "reports", "--reason", "a migration")
    assert (done.returncode, done.stdout) == (0, "table reports: accepts writes from every client\n")
    assert not is_refused(file)
    assert ask(file, "SELECT action, reason FROM fencelock_audit") == [("unprotect", "a migration (reports)")]
    assert program.inside("unprotect", app, "--resource", "reports", "--reason", "again").returncode == 1


def test_rebind_moves_the_resource(program: Program, app: str, file: Path) -> None:
    protect(program, app)
    fencelock.guard(app, resource="reports", lock=LOCK).raise_to(5, reason="test")
    words = ("rebind", app, "--resource", "reports", "--lock", "other", "--reason", "moved")
    refused = program.inside(*words)
    assert refused.returncode == 1
    assert "fencelock epoch --raise" in refused.stderr
    assert program.inside("epoch", "--raise", "--reason", "moved").returncode == 0
    (described,) = program.json(*words)
    assert (described["lock"], described["token"]) == ("other", "5")
    with program.source() as source, source.lock("other") as lease:
        write(fencelock.guard(app, resource="reports", lock="other"), lease, "moved")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["marks"], "URL"),
        (["marks", "{app}", "--lower", "3", "--reason", "x"], "--resource"),
        (["marks", "{app}", "--resource", "reports", "--lower", "3"], "--reason"),
        (["marks", "{app}", "--resource", "reports", "--lower", "x", "--reason", "x"], "--lower"),
        (["marks", "{app}", "--resource", "reports", "--lower", "0", "--reason", "x"], "1 <= token < 2**63"),
        (["marks", "{app}", "--raise-to", "{app}", "--lower", "3", "--reason", "x"], "either"),
        (["marks", "{app}", "--reason", "x"], "goes with"),
        (["marks", "nosuch://x"], "nosuch://"),
        (["protect", "{app}", "--resource", "r", "--lock", "l"], "--table"),
        (["protect", "{app}", "--resource", "", "--lock", "l", "--table", "reports"], "must not be empty"),
        (["protect", "{app}", "--resource", "r", "--lock", "l", "--table", "t", "--mode", "off"], "--mode"),
        (["unprotect", "{app}", "--resource", "reports"], "--reason"),
        (["unprotect", "{app}", "--resource", "reports", "--reason", " "], "blank"),
        (["rebind", "{app}", "--resource", "reports", "--lock", "l"], "--reason"),
    ],
)
def test_what_is_no_command_line_is_code_64_and_says_what_to_write(
    program: Program, app: str, words: list[str], message: str
) -> None:
    protect(program, app)
    done = program.inside(*(word.format(app=app) for word in words))
    assert done.returncode == 64
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("table", ["nosuch", "fencelock_mark"])
def test_a_table_that_cannot_be_protected_exits_with_1(program: Program, app: str, table: str) -> None:
    done = program.inside("protect", app, "--resource", "r", "--lock", "l", "--table", table)
    assert (done.returncode, done.stdout) == (1, "")
    assert table in done.stderr


@pytest.mark.parametrize("words", [["marks", "{url}"], ["marks", "{url}", "--json"]])
def test_a_missing_file_exits_with_69_and_is_not_created(program: Program, words: list[str]) -> None:
    url = url_of(program.folder / "nosuch.db")
    done = program.inside(*(word.format(url=url) for word in words))
    assert (done.returncode, done.stdout) == (69, "")
    assert "does not exist" in done.stderr
    assert not (program.folder / "nosuch.db").exists()


@pytest.mark.parametrize("command", ["protect", "unprotect", "rebind", "marks"])
def test_help_shows_examples(program: Program, command: str) -> None:
    done = program.inside(command, "--help")
    assert done.returncode == 0
    assert f"fencelock {command} sqlite:////srv/app.db" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_names_that_could_move_a_cursor_are_shown_escaped(program: Program, app: str) -> None:
    done = program.inside("protect", app, "--resource", "a\x1b[2Jb", "--lock", "l", "--table", "reports")
    assert done.returncode == 0
    assert "a\\x1b[2Jb" in done.stdout + program.inside("marks", app).stdout
    assert "\x1b" not in done.stdout + program.inside("marks", app).stdout


def test_doctor_continues_if_marks_cannot_be_read(program: Program) -> None:
    """A user who may examine the tables need not have the right to read the marks."""
    with program.source() as source:
        (finding,) = doctor._compare("postgresql://127.0.0.1:1/nowhere", source.describe())
    assert finding.code == "guard-refused"
    assert "cannot be compared with the source: " in finding.message


# --- one guard that fails ---------------------------------------------------------------------------------------------
def fail_at(url: str, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
    """Have a method fail for the guard at one URL alone."""
    normally = getattr(kind, name)

    def act(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.url == url:
            raise fencelock.SourceUnavailableError("gone on purpose")
        return normally(self, *arguments, **options)

    monkeypatch.setattr(kind, name, act)


@pytest.fixture
def other(program: Program) -> str:
    """The URL of a second database whose table is protected by the same lock."""
    url = url_of(make_file(program.folder / "other.db", "reports"))
    protect(program, url)
    return url


def test_a_guard_that_fails_after_the_break_keeps_no_other_from_it(
    program: Program, app: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    protect(program, app)
    fail_at(app, monkeypatch, fencelock.Guard, "outrank")
    with program.source() as source:
        lease = source.lock(LOCK).acquire()
        for url in (app, other):
            fencelock.guard(url, resource="reports", lock=LOCK).seal(lease)
        done = program.inside("break", LOCK, "--reason", "a test", "--guard", app, "--guard", other, "--json")
    assert done.returncode == 69
    told = json.loads(done.stdout)
    assert int(told["token"]) > lease.token
    assert told["guarded"] == [{"guard": other, "resource": "reports"}]
    assert f"{app}: resource reports does not refuse older tokens" in done.stderr
    assert "do not break it again" in done.stderr
    monkeypatch.undo()
    remedy = done.stderr.split("`")[1].removeprefix("fencelock ").replace("SOURCE", program.url).replace("…", "late")
    assert program.inside(*remedy.split()).returncode == 0
    for url in (app, other):
        with pytest.raises(fencelock.StaleTokenError):
            fencelock.guard(url, resource="reports", lock=LOCK).seal(lease.sequencer)


def test_a_guard_that_fails_hides_nothing_that_the_doctor_finds_elsewhere(
    program: Program, app: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    protect(program, app)
    fail_at(app, monkeypatch, SQLiteGuard, "examine")
    with fencelock.connect(f"sqlite:///{program.folder}/elsewhere.db") as elsewhere, elsewhere.lock(LOCK) as lease:
        fencelock.guard(other, resource="reports", lock=LOCK).seal(lease)
    with program.source() as source, source.lock(LOCK):
        pass
    found = json.loads(program.inside("doctor", "--guard", app, "--guard", other, "--json").stdout)["findings"]
    assert {"guard-refused", "other-source"} <= {one["code"] for one in found}


def test_a_source_that_fails_hides_nothing_that_the_doctor_finds_elsewhere(
    program: Program, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(app, monkeypatch, SQLiteGuard, "examine")
    fail_at(program.url, monkeypatch, fencelock.Source, "examine")
    found = json.loads(program.inside("doctor", "--guard", app, "--json").stdout)["findings"]
    assert [one["code"] for one in found] == ["source-refused", "guard-refused"]


def test_the_doctor_says_that_no_mark_is_in_a_mistyped_folder(program: Program) -> None:
    for name in ("marked", "other"):
        (program.folder / name).mkdir(mode=0o700)
    marked = f"file://{program.folder}/marked"
    assert program.inside("protect", marked, "--resource", "reports", "--lock", LOCK).returncode == 0
    done = program.inside("doctor", "--guard", marked, "--guard", f"file://{program.folder}/other", "--json")
    found = [one for one in json.loads(done.stdout)["findings"] if one["code"] == "no-marks"]
    assert [one["message"].split()[0] for one in found] == [f"file://{program.folder}/other"]
