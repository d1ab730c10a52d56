"""`grant`, `revoke`, `unpoison`, `keys` and `sequencer` where clients reach the store itself: SQLite and memory."""

import io
import json

import pytest

import fencelock
from fencelock import Sequencer, SigningKey
from fencelock.cli.rights import needed_besides
from fencelock.model import one_way
from fencelock.verifier import sign, write_keys
from tests.cli.program import Program, program
from tests.support.guards import HandmadeLease, make_file, url_of

__all__ = ["program"]

LOCK = "nightly"
REFUSED = [
    ["rights", "APP"],
    ["grant", "APP", "--resource", "reports", "--role", "clerk"],
    ["revoke", "APP", "--resource", "reports", "--role", "clerk", "--reason", "a test"],
    ["unpoison", "APP", "--resource", "reports", "--role", "clerk", "--reason", "a test"],
    ["protect", "APP", "--resource", "reports", "--lock", LOCK, "--table", "reports", "--roles", "clerk"],
    ["keys", "add"],
    ["keys", "retire", "k1"],
    ["keys", "list"],
    ["keys", "export", "new.keys"],
    ["keys", "install", "APP"],
    ["keys", "require", "APP", "--resource", "reports", "--reason", "a test"],
]


@pytest.fixture
def app(program: Program) -> str:
    """The URL of a file with one resource, which a lease has sealed."""
    url = url_of(make_file(program.folder / "app.db", "reports"))
    fencelock.guard(url, resource="reports", lock=LOCK).seal(HandmadeLease(7, lock=LOCK))
    return url


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: " ".join(words[:2]))
def test_69_what_a_file_has_not_is_refused_in_one_sentence(program: Program, app: str, words: list[str]) -> None:
    done = program.inside(*(app if word == "APP" else word for word in words))
    assert (done.returncode, done.stdout) == (69, "")
    assert len(done.stderr.splitlines()) == 1
    assert "clients" in done.stderr
    assert not (program.folder / "new.keys").exists()
    assert fencelock.inspect_resources(app).protections == ()
    done = program.inside(*(app if word == "APP" else word for word in words), "--json")
    assert json.loads(done.stderr)["error"]["type"] == "UnsupportedError"


@pytest.mark.parametrize(
    ("url", "needed"),
    [
        ("postgresql://app", "USAGE on the schema fencelock, by GRANT USAGE ON SCHEMA fencelock TO …, and rights"),
        ("mariadb://app", "EXECUTE on the routines fencelock_…, and rights"),
        ("own://app", "rights"),
    ],
)
def test_protect_says_which_rights_the_database_has_to_grant(url: str, needed: str) -> None:
    assert needed_besides(url) == f"{needed} on the tables"


def test_a_poisoned_file_is_cured_without_a_role(program: Program, app: str) -> None:
    """Who could write to the file before can do so again: that is said."""
    with program.source() as source, source.lock(LOCK) as lease:
        guard = fencelock.guard(url_of(program.folder / "new.db"), resource="reports", lock=LOCK)
        make_file(program.folder / "new.db", "reports")
        guard.seal(lease)
        mine = lease.sequencer
        guard.seal(Sequencer(mine.source_id, mine.history_id, LOCK, 2**53, one_way("a forger's claim")))
        words = ("unpoison", guard.url, "--resource", "reports", "--reason", "a test")
        done = program.inside(*words)
        assert done.returncode == 0
        assert done.stdout.splitlines() == [
            f"the mark was {2**53}, of lock {LOCK}",
            f"the mark of reports is {lease.token}, of lock {LOCK}",
            "No --role was given: the forger can poison the mark again.",
        ]
        assert program.json(*words) == {
            "resource": "reports",
            "lock": LOCK,
            "token": str(lease.token),
            "rights_taken": [],
            "rights_left": [],
            "sessions_ended": 0,
            "was": [],
        }
    with program.source() as source, source.lock(LOCK) as following:
        guard.seal(following)


def test_an_unknown_resource_is_not_cured(program: Program, app: str) -> None:
    done = program.inside("unpoison", app, "--resource", "none", "--reason", "a test")
    assert done.returncode == 1
    assert "knows no resource 'none'" in done.stderr


KEY = SigningKey("k1", bytes(range(32)))
SIGNED = sign(Sequencer("source", "history", LOCK, 42, one_way("claim")), KEY)


def test_a_sequencer_is_shown_without_its_proof(program: Program) -> None:
    done = program.inside("sequencer", "show", str(SIGNED))
    assert done.returncode == 0
    assert dict(line.split() for line in done.stdout.replace(" id", "_id").splitlines()) == {
        "lock": LOCK,
        "token": "42",
        "mode": "x",
        "source_id": "source",
        "history_id": "history",
        "key_id": "k1",
    }
    assert SIGNED.proof not in done.stdout
    assert SIGNED.signature not in done.stdout


def test_a_sequencer_comes_from_the_environment_or_stdin(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "or set FENCELOCK_SEQUENCER" in program.inside("sequencer", "show").stderr
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SIGNED}\n"))
    assert program.json("sequencer", "show", "-")["token"] == "42"
    program.environment["FENCELOCK_SEQUENCER"] = str(SIGNED)
    assert program.json("sequencer", "show")["key_id"] == "k1"


def test_verify_needs_the_keys_and_names_what_is_wrong(program: Program) -> None:
    write_keys(program.folder / "keys", "source", [KEY])
    assert program.json("sequencer", "verify", str(SIGNED), "--keys", "keys")["lock"] == LOCK
    for text, code, reason in (
        (str(SIGNED).replace(".42.", ".43."), 1, "changed on the way, or forged"),
        (f"{str(SIGNED).replace('.k1.', '.0.').rpartition('.')[0]}.", 1, "not signed"),
        ("fl2.nonsense", 64, "not a sequencer"),
    ):
        done = program.inside("sequencer", "verify", text, "--keys", "keys")
        assert (done.returncode, done.stdout) == (code, ""), text
        assert reason in done.stderr
        assert SIGNED.proof not in done.stderr
    assert program.inside("sequencer", "verify", str(SIGNED)).returncode == 64
    assert program.inside("sequencer", "verify", str(SIGNED), "--keys", "none").returncode == 64


def test_no_help_shows_a_secret(program: Program) -> None:
    """An example may be copied: none has a sequencer, a claim or a key in it."""
    for words in (
        ["grant"],
        ["revoke"],
        ["unpoison"],
        ["keys"],
        ["keys", "export"],
        ["sequencer"],
        ["sequencer", "show"],
    ):
        text = program.inside(*words, "--help").stdout
        assert "fl2." not in text
        assert "password" not in text.replace("role's password", "")
