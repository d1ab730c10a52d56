"""Signatures on both SQL servers: the source signs in the granting routine, and a guard that requires a signature takes
no token that the source has not issued, in any language.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import Event, ForgedSequencerError, Guard, Hooks, Sequencer, SigningKey, Source, Verifier
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.registry import source_store
from fencelock.verifier import sign
from tests.sql.clients import PublicSource, SqlClient
from tests.sql.dialect import install, run
from tests.sql.guarded import Guarded, write
from tests.sql.interleaving import LateRequest
from tests.sql.marks import kinds, one_version
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import wait_until

pytestmark = one_version


@pytest.fixture
def source(guarded: Guarded) -> Iterator[Source]:
    """Yield a source in the guarded database that signs with one key."""
    install(guarded.database.url())
    client = SqlClient(guarded.database.url())
    client.ask(ask.AddKey(SigningKey("first", b"a secret of 32 bytes for a test.")))
    client.close()
    with fencelock.connect(guarded.database.url()) as made:
        yield made


@pytest.fixture
def strict(guarded: Guarded, source: Source) -> Guard:
    """Return a guard that requires signatures of that source."""
    guard = guarded.guard()
    guard.install_keys(source)
    guard.require_signatures(reason="a test")
    return guard


def verifier(source: Source) -> Verifier:
    return Verifier(source.keys().keys, source_id=source.describe().source_id)


def refuse_seal(guarded: Guarded, text: str, reason: str, code: str = "FL013") -> None:
    """Assert that a client that knows no library is refused."""
    with guarded.database.connect() as native:
        with pytest.raises(guarded.sql.client_error, match=reason) as caught:
            run(native, f"{guarded.sql.call}seal(%s, 'reports')", text)
        assert guarded.sql.code_of(caught.value) == code


# --- the source -----------------------------------------------------------------------------------
@kinds
def test_each_grant_is_signed_with_the_newest_key(source: Source, guarded: Guarded, kind: str) -> None:
    """On each way to a grant: a new row, a row that is there, a queue, and a repeated request."""
    newest = source.add_key()
    source.add_key(after=3600)
    with PublicSource(kind, guarded.database.url()) as public:
        for _ in range(2):
            lease = public.do(public.source.lock(LOCK).acquire())
            assert verifier(source).verify(str(lease.sequencer)) == lease.sequencer
            assert lease.sequencer.key_id == newest.key_id
            public.do(lease.release())


def test_a_repeated_request_and_a_waiters_turn_are_signed_too(source: Source, guarded: Guarded) -> None:
    client = SqlClient(guarded.database.url())
    first, second = draw_claim(), draw_claim()
    granted = client.acquire("lock", first)
    assert client.acquire("lock", first).signature == granted.signature != ask.NOT_SIGNED
    assert isinstance(client.acquire("lock", second, may_wait=True), ask.Queued)
    client.release("lock", first)
    turn = client.ask(ask.Poll("lock", second))
    client.release("lock", second)
    broken = client.ask(ask.Break("lock", first, "operator", "a test"))
    for claim, reply in ((first, granted), (second, turn), (first, broken)):
        shown = Sequencer(
            reply.source_id,
            reply.history_id,
            "lock",
            reply.token,
            fencelock.model.one_way(claim),
            "x",
            *reply.signature,
        )
        verifier(source).verify(str(shown))
    client.close()


@pytest.mark.parametrize("lock", ["a", "ab", "abc", "nächtlich-ü", "'\"\\%_", "x" * 512, "\U0001f512" * 100])
def test_a_lock_of_any_name_is_signed(source: Source, lock: str) -> None:
    with source.lock(lock) as lease:
        verifier(source).verify(str(lease.sequencer))


def test_a_source_without_keys_signs_nothing(guarded: Guarded) -> None:
    with fencelock.connect(install(guarded.database.url())) as source, source.lock(LOCK) as lease:
        assert lease.sequencer.key_id == "0"
        assert str(lease.sequencer).endswith(".")


def test_a_key_that_is_retired_under_an_open_session_signs_no_more(source: Source, guarded: Guarded) -> None:
    old, client, claim = source.keys().keys[0], SqlClient(guarded.database.url()), draw_claim()
    assert client.acquire("lock", claim).signature.key_id == old.key_id
    assert source.keys().in_use == (old.key_id,)
    with pytest.raises(fencelock.ConfigError, match=r"is still running.*--force"):
        source.retire_key(old.key_id)
    client.release("lock", claim)
    assert source.keys().in_use == ()
    source.retire_key(old.key_id)
    assert client.acquire("lock", draw_claim()).signature == ask.NOT_SIGNED
    client.close()


def test_a_key_that_comes_due_under_an_open_session_signs_from_then_on(source: Source, guarded: Guarded) -> None:
    """Also on the common way to a grant, and until it is retired, by whatever statement."""
    client, first = SqlClient(guarded.database.url()), source.keys().keys[0]

    def signing() -> str:
        claim = draw_claim()
        reply = client.acquire("lock", claim)
        client.release("lock", claim)
        return reply.signature.key_id

    later = source.add_key(after=4)
    assert [signing(), signing()] == [first.key_id] * 2
    wait_until(lambda: signing() == later.key_id)
    assert [signing(), signing()] == [later.key_id] * 2
    table = "signing_key" if guarded.sql.prefix == "fencelock." else "source_key"
    guarded.database.rows(f"UPDATE {guarded.sql.prefix}{table} SET retired_s = 1 WHERE key_id = '{later.key_id}'")
    assert later.key_id not in [signing(), signing()]
    source.retire_key(later.key_id)
    assert [signing(), signing()] == [first.key_id] * 2
    client.close()


def test_only_the_owner_reads_and_writes_keys(owned: Any) -> None:
    with fencelock.connect(owned.url(user="worker")) as theirs:
        for attempt in (theirs.keys, theirs.add_key, lambda: theirs.retire_key("first")):
            with pytest.raises(fencelock.SourceError, match=r"does not permit.*the owner run.*grant this to nobody"):
                attempt()


@pytest.mark.parametrize("wrong_s", [-7200, 7200])
def test_the_servers_clock_says_from_and_until_when_a_key_signs(
    source: Source, monkeypatch: pytest.MonkeyPatch, wrong_s: int
) -> None:
    now, (old,) = time.time(), source.keys().keys
    monkeypatch.setattr("time.time", lambda: now + wrong_s)
    new, later = source.add_key(), source.add_key(after=3600)
    assert source.keys().signing == new.key_id
    with source.lock(LOCK) as lease:
        assert lease.sequencer.key_id == new.key_id
    retired = source.retire_key(old.key_id).retired_s
    times = (new.not_before_s, later.not_before_s - 3600, retired or 0)
    assert [abs(one - now) < 600 for one in times] == [True] * 3


def test_g12_who_repeats_anothers_acquire_with_its_digest_can_use_the_answer_for_nothing(
    source: Source, guarded: Guarded, strict: Guard
) -> None:
    """The digest is in the lock's row, and a source takes it for an acquire. Its signature covers no proof."""
    client, claim = SqlClient(guarded.database.url()), draw_claim()
    granted = client.acquire("lock", claim)
    digest = fencelock.model.digest_of_claim(claim)
    assert LateRequest(guarded.sql, client, claim).arrive("try", "wait") == ["held", "held"]
    shown = Sequencer(granted.source_id, granted.history_id, "lock", granted.token, digest, "x", *granted.signature)
    assert not source.check(shown).is_current
    with pytest.raises(ForgedSequencerError):
        verifier(source).verify(str(shown))
    refuse_seal(guarded, str(replace(shown, lock=LOCK)), "not the one that key")
    assert not client.release("lock", digest)
    assert client.release("lock", claim)
    client.close()


# --- the guard ------------------------------------------------------------------------------------
def test_g12_a_signed_lease_writes_and_an_unsigned_or_forged_sequencer_seals_nothing(
    guarded: Guarded, source: Source, strict: Guard
) -> None:
    """Whoever owns the schema, and so every right, is refused as well; a lower token is no way to look at the mark."""
    source.lock("another").acquire().release()
    with source.lock(LOCK) as lease, strict.transaction(lease) as native:
        write(native)
    known, key = lease.sequencer, source.keys().keys[0]
    forged = replace(known, token=known.token + 9)
    stranger = SigningKey("stranger", b"s" * 32)
    cases = {
        "it has none": replace(forged, key_id="0", signature=""),
        "it is not the one that": forged,
        "does not know its key stranger": sign(forged, stranger),
        f"not the one that key {key.key_id}": sign(forged, replace(stranger, key_id=key.key_id)),
    }
    for reason, sequencer in cases.items():
        for shown in (sequencer, replace(sequencer, token=1)):
            refuse_seal(guarded, str(shown), reason)
        with pytest.raises(ForgedSequencerError, match=reason):
            guarded.guard().seal(sequencer)
    for damaged, reason in {
        str(known)[:-1]: "it was cut off",
        str(known)[:60]: "it was cut off",
        str(known).replace("fl2", "fl1"): "it has the format fl1",
        str(known)[:-1] + "=": "fl2.<key id>",
    }.items():
        refuse_seal(guarded, damaged, f"not a sequencer: .*{reason}", guarded.sql.no_sequencer)
    assert strict.mark().token == known.token


def test_a_hook_is_told_once_of_each_forged_sequencer(guarded: Guarded, source: Source, strict: Guard) -> None:
    told: list[Event] = []
    hooks, url = Hooks(on_refused=told.append), guarded.database.url()
    guards = [make(url, resource=RESOURCE, lock=LOCK, hooks=hooks) for make in (fencelock.guard, fencelock.aio.guard)]
    with source.lock(LOCK) as lease:
        forged = replace(lease.sequencer, token=lease.token + 9)
    with pytest.raises(ForgedSequencerError):
        guards[0].seal(forged)
    with pytest.raises(ForgedSequencerError), guards[0].transaction(forged):
        pass
    with pytest.raises(ForgedSequencerError):
        asyncio.run(guards[1].seal(forged))
    assert told == [Event("refused", LOCK, forged.token, RESOURCE, reason="forged")] * 3


def test_g12_a_true_signature_of_another_lock_source_history_or_proof_is_none(
    guarded: Guarded, source: Source, strict: Guard
) -> None:
    with source.lock(LOCK) as lease:
        known = lease.sequencer
    changed: list[dict[str, Any]] = [
        {"lock": "another"}, {"source_id": "another"}, {"history_id": "another"}, {"proof": "0" * 32},
        {"token": known.token + 1},
    ]  # fmt: skip
    for change in changed:
        refuse_seal(guarded, str(replace(known, **change)), "not the one that key")
    refuse_seal(guarded, str(known).replace(".x.", ".s."), "not a sequencer", guarded.sql.no_sequencer)
    with source.lock("another") as other:
        refuse_seal(guarded, str(other.sequencer), "bound to another lock", "FL004")
    strict.seal(lease.sequencer)


def test_g12_two_keys_are_accepted_during_a_rotation_and_a_lease_is_held_across_it(
    guarded: Guarded, source: Source, strict: Guard
) -> None:
    (old,) = source.keys().keys
    with source.lock(LOCK) as held:
        new = source.add_key()
        strict.install_keys(source)
        with strict.transaction(held) as native:
            write(native, "signed with the old key")
    assert held.sequencer.key_id == old.key_id
    with source.lock(LOCK) as next_lease:
        strict.seal(next_lease)
    assert next_lease.sequencer.key_id == new.key_id
    source.retire_key(old.key_id)
    strict.install_keys(source)
    stolen = sign(replace(held.sequencer, token=next_lease.token + 5), old)
    refuse_seal(guarded, str(stolen), f"its key {old.key_id} is retired")
    with source.lock(LOCK) as last, strict.transaction(last) as native:
        write(native, "signed with the new key")


def test_g12_a_retired_key_counts_for_nothing_whatever_a_servers_clock_says(
    guarded: Guarded, source: Source, strict: Guard
) -> None:
    """The servers' clocks are a day behind the operator's."""
    (old,) = source.keys().keys
    with source.lock(LOCK) as lease:
        stolen = sign(replace(lease.sequencer, token=lease.token + 5), old)
    source.retire_key(old.key_id)
    table = "signing_key" if guarded.sql.prefix == "fencelock." else "source_key"
    guarded.database.rows(f"UPDATE {guarded.sql.prefix}{table} SET retired_s = retired_s + 86400")
    strict.install_keys(source)
    refuse_seal(guarded, str(stolen), f"its key {old.key_id} is retired")
    for _ in range(2):  # A new row, and one that is there.
        with source.lock("lock") as lease:
            assert (lease.sequencer.key_id, lease.sequencer.signature) == ask.NOT_SIGNED
    broken = source.break_lock("lock", reason="a test").sequencer
    assert broken.key_id == "0"


def test_g12_a_key_that_is_taken_away_under_an_open_session_seals_no_more(
    guarded: Guarded, source: Source, strict: Guard
) -> None:
    (old,) = source.keys().keys
    with source.lock(LOCK) as lease, guarded.database.connect() as native:
        run(native, f"{guarded.sql.call}seal(%s, 'reports')", str(lease.sequencer))
        strict.install_keys(ask.Keys((), ()))
        forged = sign(replace(lease.sequencer, token=lease.token + 1), old)
        with pytest.raises(guarded.sql.client_error, match="does not know its key"):
            run(native, f"{guarded.sql.call}seal(%s, 'reports')", str(forged))


def test_g12_breaking_a_lock_seals_with_a_signature(guarded: Guarded, source: Source, strict: Guard) -> None:
    lease = source.lock(LOCK).acquire()
    strict.seal(lease)
    broken = source.break_lock(LOCK, reason="a test")
    strict.outrank(broken, reason="a test")
    assert strict.mark().token == broken.token
    with pytest.raises(ForgedSequencerError):
        strict.outrank(HandmadeLease(broken.token + 1, source_id=lease.sequencer.source_id), reason="a test")


def test_signatures_are_not_required_while_the_guard_has_no_key(guarded: Guarded, source: Source) -> None:
    """They would lock every holder out; a retired key accepts no signature either."""
    guard, (key,) = guarded.guard(), source.keys().keys
    for keys in ((), (replace(key, retired_s=key.not_before_s),)):
        guard.install_keys(ask.Keys(keys, ()))
        with pytest.raises(fencelock.GuardError, match=r"no key.*fencelock keys install GUARD_URL --source SOURCE"):
            guard.require_signatures(reason="a test")
        guard.require_signatures(False, reason="a test")
    with source.lock(LOCK) as lease:
        guard.seal(lease)


def test_signatures_are_required_only_where_an_operator_has_said_so(guarded: Guarded, strict: Guard) -> None:
    report = fencelock.inspect_resources(guarded.database.url())
    assert report.signed == (RESOURCE,)
    strict.require_signatures(False, reason="a test")
    assert fencelock.inspect_resources(guarded.database.url()).signed == ()
    strict.seal(HandmadeLease(5))
    with pytest.raises(fencelock.GuardError, match="protect first"):
        guarded.guard("nowhere").require_signatures(reason="a test")


# --- check ----------------------------------------------------------------------------------------
@kinds
def test_a_check_says_whether_a_sequencer_holds_its_lock_now(guarded: Guarded, kind: str) -> None:
    with PublicSource(kind, install(guarded.database.url())) as public:
        lease = public.do(public.source.lock(LOCK, ttl=20).acquire())
        known = lease.sequencer
        found = public.do(public.source.check(known))
        assert found.is_current
        assert 10 < found.remaining <= 20
        assert found.last_token == known.token
        for wrong in (replace(known, proof="0" * 32), replace(known, history_id="another")):
            assert not public.do(public.source.check(wrong)).is_current
        public.do(lease.release())
        assert not public.do(public.source.check(known)).is_current
        assert not public.do(public.source.check(replace(known, lock="unknown"))).is_current


def test_a_check_is_answered_by_a_proof_and_not_by_what_tables_keep(guarded: Guarded) -> None:
    connection: Any = source_store(install(guarded.database.url())).connect(request_timeout_s=5.0)
    client = SqlClient(guarded.database.url())
    claim = draw_claim()
    granted = client.acquire("lock", claim)
    for secret, is_current in ((fencelock.model.one_way(claim), True), (fencelock.model.digest_of_claim(claim), False)):
        checked = connection.perform(ask.Check("lock", granted.history_id, secret))
        assert (checked.remaining_ms > 0) == is_current
    connection.close()
    client.close()
