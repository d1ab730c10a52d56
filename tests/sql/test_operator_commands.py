"""`fencelock grant`, `revoke`, `unpoison`, `keys` and `sequencer` at SQL servers, and the story of a poisoned mark."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import ForgedSequencerError, RightError, Sequencer, SigningKey, StaleTokenError
from fencelock.model import draw_claim, one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores.registry import source_store
from fencelock.verifier import read_keys, sign
from tests.cli.program import Program, program
from tests.sql.clients import SqlClient
from tests.sql.dialect import MakeRole, SqlDialect
from tests.sql.guarded import FORGED, Guarded, Step, write
from tests.support.guards import LOCK, RESOURCE
from tests.support.helpers import wait_until

__all__ = ["program"]

pytestmark = pytest.mark.server_wide
FORGERS = 2


@pytest.fixture
def source(guarded: Guarded, program: Program) -> Iterator[fencelock.Source]:
    """The source of the locks, in the guarded database, which is the commands' own."""
    url = guarded.database.url()
    source_store(url).install()
    program.environment["FENCELOCK_SOURCE"] = program.url = url
    with fencelock.connect(url) as source:
        yield source


@pytest.fixture
def output(program: Program) -> Callable[..., str]:
    """Run a command that exits with a code, and return all that it prints."""

    def said(code: int, *words: str) -> str:
        done = program.inside(*words)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    return said


def forged(like: Sequencer, token: int = FORGED) -> Sequencer:
    return Sequencer(like.source_id, like.history_id, like.lock, token, one_way("a forger's claim"))


# --- rights -----------------------------------------------------------------------------------------------------------
def test_grant_and_revoke_print_the_rights_that_there_are(guarded: Guarded, program: Program, role: str) -> None:
    url = guarded.database.url()
    assert program.json("grant", url, "--resource", RESOURCE, "--role", role) == [{"resource": RESOURCE, "role": role}]
    both = [{"resource": "rep*", "role": role}, {"resource": RESOURCE, "role": role}]
    assert program.json("grant", url, "--resource", "rep*", "--role", role) == both
    done = program.inside("grant", url, "--resource", "rep*", "--role", role)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["RESOURCE", "ROLE"],
        ["rep*", role],
        [RESOURCE, role],
    ]
    done = program.inside("revoke", url, "--resource", RESOURCE, "--role", role, "--reason", "moved")
    assert (done.returncode, done.stdout) == (0, "no role but the owner has a right here\n")
    assert program.json("revoke", url, "--resource", RESOURCE, "--role", role, "--reason", "moved") == []


def test_a_role_writes_from_its_grant_until_its_revocation(
    guarded: Guarded, source: fencelock.Source, output: Callable[..., str], role: str
) -> None:
    url, guard = guarded.database.url(), guarded.guard(user=role)
    with source.lock(LOCK) as lease:
        with pytest.raises(RightError):
            guard.seal(lease)
        output(0, "grant", url, "--resource", RESOURCE, "--role", role)
        with guard.transaction(lease) as native:
            write(native, "by the clerk")
        output(0, "revoke", url, "--resource", RESOURCE, "--role", role, "--reason", "moved")
        with pytest.raises(RightError), guard.transaction(lease) as native:
            write(native, "late")
    assert guarded.value() == "by the clerk"


def test_protect_grants_to_its_roles_and_prints_what_they_may(guarded: Guarded, program: Program, role: str) -> None:
    url = guarded.database.url()
    words = ("protect", url, "--resource", RESOURCE, "--lock", LOCK, "--table", "reports", "--roles", role)
    *_, has_right, needs = program.inside(*words).stdout.splitlines()
    assert has_right == f"role {role}: may seal, present and close it"
    assert needs.startswith("Not granted by fencelock: ")
    assert needs.endswith(", and rights on the tables")
    right = {"resource": RESOURCE, "role": role}
    (printed,) = program.json(*words)
    assert (printed["rights"], printed["signatures_required"]) == ([right], False)
    assert program.json("rights", url) == [right]


def test_rights_are_listed_alone_or_for_one_resource(guarded: Guarded, program: Program, role: str) -> None:
    url = guarded.database.url()
    assert program.json("rights", url) == []
    for resource in ("rep*", "orders"):
        program.json("grant", url, "--resource", resource, "--role", role)
    assert program.json("rights", url, "--resource", RESOURCE) == [{"resource": "rep*", "role": role}]
    assert [one["resource"] for one in program.json("rights", url)] == ["orders", "rep*"]
    (mark,) = program.json("marks", url)["resources"]
    assert mark["rights"] == [{"resource": "rep*", "role": role}]


def test_marks_say_which_resources_require_signatures(
    guarded: Guarded, source: fencelock.Source, program: Program
) -> None:
    url = guarded.database.url()
    program.json("keys", "add")
    program.json("keys", "install", url)
    program.json("keys", "require", url, "--resource", RESOURCE, "--reason", "a test")
    assert program.json("marks", url)["resources"][0]["signatures_required"]
    assert f"Sealed by signed sequencers only: {RESOURCE}" in program.inside("marks", url).stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["grant", "URL", "--resource", "r"], "Missing option '--role'"),
        (["grant", "URL", "--role", "r"], "Missing option '--resource'"),
        (["grant", "URL", "--resource", "", "--role", "r"], "must not be empty"),
        (["grant", "URL", "--resource", "r", "--role", ""], "role"),
        (["revoke", "URL", "--resource", "r", "--role", "r"], "Missing option '--reason'"),
        (["unpoison", "URL", "--resource", "reports"], "Missing option '--reason'"),
        (["keys", "require", "URL", "--resource", "r"], "Missing option '--reason'"),
    ],
)
def test_64_a_command_that_lacks_something_changes_nothing(
    guarded: Guarded, output: Callable[..., str], words: list[str], complaint: str
) -> None:
    url = guarded.database.url()
    assert complaint in output(64, *(url if word == "URL" else word for word in words))
    assert fencelock.inspect_resources(url).rights == ()


# --- the story of a poisoned mark -------------------------------------------------------------------------------------
def test_g12_the_documented_cure_holds_against_a_forger_that_goes_on(
    guarded: Guarded, source: fencelock.Source, program: Program, role: str
) -> None:
    url, owner = guarded.database.url(), guarded.guard()
    program.json("grant", url, "--resource", RESOURCE, "--role", role)
    lease = source.lock(LOCK).acquire()
    with owner.transaction(lease) as native:
        write(native, "before")
    with ExitStack() as opened:
        sessions = [opened.enter_context(guarded.database.connect(user=role)) for _ in range(FORGERS)]
        forgers = [Step(guarded.forge_on, native, lease.sequencer) for native in sessions]
        wait_until(lambda: owner.mark().token >= FORGED)
        with pytest.raises(StaleTokenError), owner.transaction(lease) as native:
            write(native, "refused")
        cured = program.json("unpoison", url, "--resource", RESOURCE, "--role", role, "--reason", "broken into")
        for forger in forgers:
            forger.end()
    assert cured["rights_taken"] == [{"resource": RESOURCE, "role": role}]
    assert cured["sessions_ended"] == FORGERS
    assert (cured["resource"], cured["lock"], int(cured["token"])) == (RESOURCE, LOCK, lease.token)
    assert [int(before["token"]) >= FORGED for before in cured["was"]] == [True]
    with pytest.raises(RightError):
        guarded.guard(user=role).seal(forged(lease.sequencer, FORGED + 10**7))
    lease.release()
    with source.lock(LOCK) as following, owner.transaction(following) as native:
        write(native, "after")
    assert guarded.value() == "after"


def test_unpoison_shows_the_rights_that_are_left(
    guarded: Guarded, source: fencelock.Source, program: Program, output: Callable[..., str], make_role: MakeRole
) -> None:
    """The forger may have one of them, as a member of a role."""
    owner, role, other = guarded.guard(), make_role(), make_role()
    for right in (RESOURCE, "rep*", "orders"):
        owner.grant(role, resource=right)
    owner.grant(other, resource="rep*")
    unpoison = ("unpoison", guarded.database.url(), "--resource", RESOURCE, "--role", role, "--reason", "a test")
    said = output(0, *unpoison)
    assert f"took from {role}: rep*" in said
    assert f"still has a right: {other}, to rep*" in said
    assert "had no right" not in said
    cured = program.json(*unpoison)
    assert (cured["rights_taken"], cured["rights_left"]) == ([], [{"resource": "rep*", "role": other}])
    assert f"{role} had no right of its own" in output(0, *unpoison)


def test_unpoison_without_a_role_says_what_that_leaves_open(
    guarded: Guarded, source: fencelock.Source, output: Callable[..., str]
) -> None:
    with source.lock(LOCK) as lease:
        guarded.guard().seal(forged(lease.sequencer))
    said = output(0, "unpoison", guarded.database.url(), "--resource", RESOURCE, "--reason", "a test")
    assert f"the mark was {FORGED}, of lock {LOCK}" in said
    assert "No --role was given: the forger can poison the mark again." in said
    assert guarded.guard().mark().token == lease.token


def test_marks_are_raised_above_the_ceiling_by_name_alone(
    guarded: Guarded, output: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source began under a clock that was two hundred years ahead."""
    high = 2**62
    info = fencelock.SourceInfo("source", 1, "history", high, high)
    monkeypatch.setattr("fencelock.cli.marks.read_source", lambda _: info)
    words = ("marks", guarded.database.url(), "--raise-to", "sqlite:///any.db", "--reason", "restored")
    assert "no source can have issued a token above" in output(1, *words)
    assert guarded.guard().mark().token == 0
    output(0, *words, "--implausible")
    assert guarded.guard().mark().token == high
    assert "--implausible goes with --raise-to" in output(64, "marks", guarded.database.url(), "--implausible")


# --- keys -------------------------------------------------------------------------------------------------------------
def test_no_command_prints_a_secret(
    guarded: Guarded, source: fencelock.Source, output: Callable[..., str], tmp_path: Path
) -> None:
    url, path = guarded.database.url(), tmp_path / "keys"
    said = output(0, "keys", "add") + output(0, "keys", "add", "--after", "60", "--json")
    said += output(0, "keys", "list") + output(0, "keys", "list", "--json")
    said += output(0, "keys", "export", str(path)) + output(0, "keys", "install", url)
    said += output(0, "keys", "require", url, "--resource", RESOURCE, "--reason", "a test")
    first, second = source.keys().keys
    with source.lock(LOCK) as lease:
        text = str(lease.sequencer)
        said += output(64, "keys", "retire", first.key_id)
        said += output(0, "sequencer", "show", text) + output(0, "sequencer", "verify", text, "--keys", str(path))
    said += output(0, "keys", "retire", first.key_id, "--json")
    for secret in (first.secret.hex(), second.secret.hex(), lease.sequencer.proof, lease.sequencer.signature):
        assert secret not in said
    assert path.stat().st_mode & 0o777 == 0o600
    assert [key.secret for key in read_keys(path)[1]] == [first.secret, second.secret]
    assert "exists: name a new file" in output(64, "keys", "export", str(path))


def test_keys_are_listed_with_their_state(source: fencelock.Source, program: Program) -> None:
    assert program.inside("keys", "list").stdout == "the source has no key, and signs nothing\n"
    added = program.json("keys", "add")
    assert set(added) == {"key_id", "not_before_s", "retired_s"}
    with source.lock(LOCK):
        assert program.json("keys", "list") == [added | {"in_use": True}]
        assert "in use" in program.inside("keys", "list").stdout
    later = program.json("keys", "add", "--after", "1000")
    assert later["not_before_s"] - added["not_before_s"] >= 1000
    retired = program.json("keys", "retire", added["key_id"])
    assert retired["retired_s"] is not None
    assert program.json("keys", "list") == [retired | {"in_use": False}, later | {"in_use": False}]
    done = program.inside("keys", "retire", "nokey")
    assert done.returncode == 64
    assert "the source has no key 'nokey'" in done.stderr


def signed_lease(source: fencelock.Source, key: SigningKey) -> Any:
    lease = source.lock(LOCK).acquire()
    assert lease.sequencer.key_id == key.key_id
    return lease


def test_the_source_signs_as_the_verifier_does(source: fencelock.Source) -> None:
    """Names of any bytes, long and short, and a break's sequencer too."""
    key = source.add_key()
    for name in ("a", "billing/eu \N{SNOWMAN}", "x" * 512, '"\\'):
        with source.lock(name) as lease:
            assert lease.sequencer == sign(lease.sequencer, key)
            assert lease.sequencer.signature == sign(lease.sequencer, key).signature
        broken = source.break_lock(name, reason="a test").sequencer
        assert broken.signature == sign(broken, key).signature


def test_g12_a_lost_key_is_undone_by_the_documented_steps(
    guarded: Guarded, source: fencelock.Source, program: Program, role: str
) -> None:
    url, owner, thief = guarded.database.url(), guarded.guard(), guarded.guard(user=role)
    program.json("grant", url, "--resource", RESOURCE, "--role", role)
    stolen = source.add_key()
    program.json("keys", "install", url)
    program.json("keys", "require", url, "--resource", RESOURCE, "--reason", "a test")
    lease = signed_lease(source, stolen)
    with pytest.raises(ForgedSequencerError):
        thief.seal(forged(lease.sequencer))
    thief.seal(sign(forged(lease.sequencer), stolen))
    program.json("keys", "add")
    refused = program.inside("keys", "retire", stolen.key_id)
    assert refused.returncode == 64
    assert "has signed a lease that is still running" in refused.stderr
    program.json("keys", "retire", stolen.key_id, "--force")
    program.json("epoch", "--raise", "--reason", "a key was stolen")
    program.json("keys", "install", url)
    with pytest.raises(ForgedSequencerError):
        thief.seal(sign(forged(lease.sequencer, FORGED + 1), stolen))
    program.json("unpoison", url, "--resource", RESOURCE, "--role", role, "--reason", "a key was stolen")
    fresh = next(key for key in source.keys().keys if key.retired_s is None)
    lease = signed_lease(source, fresh)
    with owner.transaction(lease) as native:
        write(native, "signed anew")
    lease.release()
    assert guarded.value() == "signed anew"


# --- sequencers -------------------------------------------------------------------------------------------------------
def test_a_sequencer_is_shown_and_verified(
    source: fencelock.Source, program: Program, output: Callable[..., str], tmp_path: Path
) -> None:
    key, path = source.add_key(), tmp_path / "keys"
    output(0, "keys", "export", str(path))
    with source.lock(LOCK) as lease:
        text = str(lease.sequencer)
    expected = {
        "lock": LOCK,
        "token": str(lease.token),
        "mode": "x",
        "source_id": lease.sequencer.source_id,
        "history_id": lease.sequencer.history_id,
        "key_id": key.key_id,
    }
    assert program.json("sequencer", "show", text) == expected
    assert program.json("sequencer", "verify", text, "--keys", str(path), "--lock", LOCK) == expected
    program.environment["FENCELOCK_SEQUENCER"] = text
    assert program.json("sequencer", "verify", "--keys", str(path), "--lock", "night*") == expected
    assert "below mark" in output(1, "sequencer", "verify", "--keys", str(path), "--mark", str(lease.token + 1))
    assert "accepted is 'other'" in output(1, "sequencer", "verify", "--keys", str(path), "--lock", "other")
    other = str(dataclasses.replace(lease.sequencer, token=lease.token + 1))
    assert "changed on the way, or forged" in output(1, "sequencer", "verify", other, "--keys", str(path))
    done = program.inside("sequencer", "verify", other, "--keys", str(path), "--json")
    assert json.loads(done.stderr)["error"]["type"] == "ForgedSequencerError"
    path.chmod(0o644)
    assert "chmod 600" in output(64, "sequencer", "verify", text, "--keys", str(path))


def test_a_role_without_a_right_is_named(guarded: Guarded, source: fencelock.Source, output: Any, role: str) -> None:
    """A wrong name takes nothing from the forger, so an operator has to see it."""
    words = (guarded.database.url(), "--resource", RESOURCE, "--role", role, "--reason", "a test")
    for command in ("revoke", "unpoison"):
        assert f"{role} had no right of its own to {RESOURCE}: check the name" in output(0, command, *words)


def test_keys_that_do_not_exist_are_brought_nowhere(
    guarded: Guarded, source: fencelock.Source, output: Any, tmp_path: Path
) -> None:
    for words in (["install", guarded.database.url()], ["export", str(tmp_path / "new.keys")]):
        assert "the source has no key" in output(64, "keys", *words)
    assert not (tmp_path / "new.keys").exists()
    source.add_key()
    assert "cannot be written: No such file" in output(64, "keys", "export", str(tmp_path / "none" / "new.keys"))


# --- the audit --------------------------------------------------------------------------------------------------------
def test_an_entry_names_the_account_whatever_name_its_session_gives(sql: SqlDialect, url: str, database: Any) -> None:
    """Also one by a worker, where a worker may begin a history: an operator blames nobody else."""
    client = SqlClient(url)
    client.ask(ask.Break("lock", draw_claim(), "somebody else", "a test"))
    client.raise_epoch()
    client.close()
    entries = database.rows(f"SELECT {sql.is_by_admin}, who FROM {sql.prefix}source_audit ORDER BY id")
    assert [(bool(by_admin), who == "somebody else") for by_admin, who in entries] == [(True, True), (True, False)]
