"""G12 on PostgreSQL: the source signs what it grants, and a mark that requires signatures is raised by nothing else."""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

import psycopg
import pytest

import fencelock
from fencelock import (
    ConfigError,
    ForgedSequencerError,
    Guard,
    Lease,
    Sequencer,
    Source,
    SourceError,
    SourceInfo,
    Verifier,
)
from fencelock.model import SigningKey
from fencelock.protocol.source_requests import Granted, Keys
from tests.sql.clients import SqlClient
from tests.sql.guarded import Guarded, write
from tests.support.guards import LOCK, RESOURCE

pytestmark = pytest.mark.server_wide
FORGED = 2**53


def signed_by(key: SigningKey, sequencer: Sequencer) -> Sequencer:
    """Return the sequencer with the signature that this key gives, as the page of the format says."""
    named = replace(sequencer, key_id=key.key_id, signature="A" * 22)
    mac = hmac.new(key.secret, named.signed_bytes, sha256).digest()[:16]
    return replace(named, signature=urlsafe_b64encode(mac).rstrip(b"=").decode())


class SignedStage:
    """A source with one key, and a resource in its database that requires signatures."""

    def __init__(self, guarded: Guarded) -> None:
        self.guarded = guarded
        self.url = guarded.database.url()
        self.source: Source = fencelock.connect(self.url)
        self.source.install()
        self.key = self.source.add_key()
        self.guard: Guard = guarded.guard()
        self.guard.install_keys(self.source)
        self.guard.require_signatures(reason="a test")

    def lease(self, lock: str = LOCK) -> Lease:
        lease = self.source.lock(lock).acquire()
        assert lease is not None
        return lease

    def refused(self, text: str | Sequencer) -> str:
        """Return the reason for which plain SQL refuses to seal with a sequencer."""
        with self.guarded.database.connect() as native, pytest.raises(psycopg.Error) as caught:
            native.execute("SELECT fencelock.seal(%s, 'reports')", (str(text),))
        assert caught.value.sqlstate == "FL013"
        return str(caught.value.diag.message_primary)


@pytest.fixture
def signed(guarded: Guarded) -> Iterator[SignedStage]:
    stage = SignedStage(guarded)
    yield stage
    stage.source.close()


def test_g12_a_grant_is_signed_so_that_others_can_verify_it(signed: SignedStage) -> None:
    for lock in (LOCK, "nächtlich-ü", "x" * 512):
        with signed.lease(lock) as lease:
            sequencer = lease.sequencer
            assert (sequencer.key_id, len(sequencer.signature)) == (signed.key.key_id, 22)
            assert signed_by(signed.key, sequencer) == sequencer
            assert signed_by(signed.key, sequencer).signature == sequencer.signature
            verifier = Verifier(signed.source.keys().keys, source_id=sequencer.source_id)
            assert verifier.verify(str(sequencer)) == sequencer


@pytest.mark.parametrize("length", [1, 32, 64, 65, 200])
def test_g12_keys_of_every_length_sign_as_hmac_does(signed: SignedStage, length: int) -> None:
    """RFC 2104 hashes a key that is longer than a block."""
    key = SigningKey("of-this-length", bytes(range(length)), 1_790_000_000)
    with signed.lease() as lease:
        text = str(lease.sequencer).rpartition(".")[0]
        guard_text = fencelock.Sequencer.parse(f"{text}.{lease.sequencer.signature}")
    signed.guard.install_keys(Keys((key,), ()))
    with signed.guarded.database.connect() as native:
        native.execute("SELECT fencelock.seal(%s, 'reports')", (str(signed_by(key, guard_text)),))


def test_g12_a_granted_lease_seals_and_writes_and_closes(signed: SignedStage) -> None:
    with signed.lease() as lease:
        with signed.guard.transaction(lease) as native:
            write(native)
        signed.guard.close(lease)
        assert signed.guard.mark().is_closed
    with signed.lease() as lease:
        signed.guard.close(lease)


def test_g12_what_is_forged_truncated_or_signed_again_is_refused_by_name(signed: SignedStage) -> None:
    thief = SigningKey(signed.key.key_id, b"t" * 32)
    with signed.lease() as lease:
        shown = lease.sequencer
    unsigned = replace(shown, key_id="0", signature="")
    attempts = {
        "it has none": unsigned,
        "does not know its key stranger": signed_by(SigningKey("stranger", b"s" * 32), shown),
        f"not the one that key {signed.key.key_id} gives": signed_by(thief, shown),
    }
    for reason, attempt in attempts.items():
        assert reason in signed.refused(attempt)
    wrong = (
        replace(shown, token=FORGED),
        replace(shown, proof="0" * 32),
        replace(shown, history_id="another"),
        replace(shown, lock="another"),
        replace(shown, source_id="another"),
        replace(shown, signature=shown.signature.swapcase()),
        replace(shown, signature="A" * 22),
    )
    for attempt in wrong:
        assert "not the one that key" in signed.refused(attempt)
    with signed.guarded.database.connect() as native, pytest.raises(psycopg.Error, match="not a sequencer"):
        native.execute("SELECT fencelock.seal(%s, 'reports')", (str(shown)[:-1],))
    assert signed.guard.mark().token == 0
    with pytest.raises(ForgedSequencerError):
        signed.guard.seal(replace(shown, token=FORGED))


def test_g12_the_signature_comes_before_any_comparison_with_the_mark(signed: SignedStage) -> None:
    with signed.lease() as lease:
        signed.guard.seal(lease)
        for token in (lease.token - 1 or FORGED, lease.token, FORGED):
            forged = replace(lease.sequencer, token=token, proof="0" * 32)
            assert "not the one that key" in signed.refused(forged)


def test_g12_a_genuine_sequencer_of_another_lock_or_source_is_refused(signed: SignedStage) -> None:
    """A replay: the signature is right, and the binding is not."""
    with signed.lease() as first:
        signed.guard.seal(first)
    with signed.lease("another") as other:
        with signed.guarded.database.connect() as native, pytest.raises(psycopg.Error) as caught:
            native.execute("SELECT fencelock.seal(%s, 'reports')", (str(other.sequencer),))
        assert caught.value.sqlstate == "FL004"
        elsewhere = signed_by(signed.key, replace(first.sequencer, source_id="another", token=other.token))
        with signed.guarded.database.connect() as native, pytest.raises(psycopg.Error) as caught:
            native.execute("SELECT fencelock.seal(%s, 'reports')", (str(elsewhere),))
        assert caught.value.sqlstate == "FL004"
        shared = str(other.sequencer).replace(".x.", ".s.")
        with signed.guarded.database.connect() as native, pytest.raises(psycopg.Error, match="not a sequencer"):
            native.execute("SELECT fencelock.seal(%s, 'reports')", (shared,))


def test_g12_a_role_with_a_right_cannot_poison_a_mark_that_requires_signatures(signed: SignedStage) -> None:
    database = signed.guarded.database
    role = f"worker_{database.name}"
    database.rows(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fencelock TO {role}")
    signed.guard.grant(role)
    try:
        with signed.lease() as lease:
            forged = replace(lease.sequencer, token=FORGED)
            with database.connect(user=role) as native:
                for routine in ("seal", "raise_marks"):
                    for attempt in (forged, replace(forged, key_id="0", signature="")):
                        with pytest.raises(psycopg.Error) as caught:
                            native.execute(f"SELECT fencelock.{routine}(%s, 'reports')".encode(), (str(attempt),))
                        assert caught.value.sqlstate == "FL013"
                for table in ("signing_key", "guard_key"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        native.execute(f"SELECT * FROM fencelock.{table}".encode())
            signed.guarded.guard(user=role).seal(lease)
        with pytest.raises(SourceError, match="does not permit it"):
            fencelock.connect(database.url(user=role)).keys()
    finally:
        database.rows(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_g12_a_break_is_signed_and_outranks_where_signatures_are_required(signed: SignedStage) -> None:
    lease = signed.lease()
    signed.guard.seal(lease)
    broken = signed.source.break_lock(LOCK, reason="a test")
    assert signed_by(signed.key, broken.sequencer).signature == broken.sequencer.signature
    with pytest.raises(ForgedSequencerError):
        signed.guard.outrank(replace(broken.sequencer, token=FORGED), reason="a forger")
    signed.guard.outrank(broken.sequencer, reason="a test")
    assert signed.guard.mark().token == broken.token
    lease.release()


# --- rotation -------------------------------------------------------------------------------------
def test_g12_two_keys_are_active_during_a_rotation_with_leases_held_across_it(signed: SignedStage) -> None:
    held = signed.lease()
    second = signed.source.add_key()
    signed.guard.install_keys(signed.source)
    with signed.lease("another") as later:
        assert later.sequencer.key_id == second.key_id
    assert signed.source.keys().in_use == (signed.key.key_id,)
    with pytest.raises(ConfigError, match="has signed a lease that is still running"):
        signed.source.retire_key(signed.key.key_id)
    signed.guard.seal(held)
    held.release()
    signed.source.retire_key(signed.key.key_id)
    signed.guard.install_keys(signed.source)
    with signed.lease() as next_one:
        assert next_one.sequencer.key_id == second.key_id
        with signed.guard.transaction(next_one) as native:
            write(native)


def test_a_key_that_is_not_due_yet_signs_nothing(signed: SignedStage) -> None:
    signed.source.add_key(after=3600)
    with signed.lease() as lease:
        assert lease.sequencer.key_id == signed.key.key_id


def test_g12_a_key_retired_under_open_sessions_signs_and_admits_nothing_more(signed: SignedStage) -> None:
    """Sessions that have signed and checked with it are open all the time, with their plans."""
    with signed.guarded.database.connect() as sealing:
        for _ in range(8):
            with signed.lease() as lease:
                sealing.execute("SELECT fencelock.seal(%s, 'reports')", (str(lease.sequencer),))
        with signed.lease() as old:
            stolen = replace(old.sequencer, token=old.token)
        second = signed.source.add_key()
        signed.source.retire_key(signed.key.key_id)
        with signed.lease() as lease:
            assert lease.sequencer.key_id == second.key_id
        signed.guard.install_keys(signed.source)
        with pytest.raises(psycopg.Error, match=f"its key {signed.key.key_id} is retired") as caught:
            sealing.execute("SELECT fencelock.seal(%s, 'reports')", (str(stolen),))
        assert caught.value.sqlstate == "FL013"


def test_g12_without_a_key_nothing_is_signed(signed: SignedStage) -> None:
    signed.source.retire_key(signed.key.key_id)
    with signed.lease() as lease:
        assert (lease.sequencer.key_id, lease.sequencer.signature) == ("0", "")
        assert "it has none" in signed.refused(lease.sequencer)


def test_g12_a_lost_key_is_retired_and_the_epoch_raised(signed: SignedStage) -> None:
    """The documented steps: the new history begins above what the thief has sealed, whose next signature is refused."""
    with signed.lease() as lease:
        poison = signed_by(signed.key, replace(lease.sequencer, token=FORGED))
        with signed.guarded.database.connect() as native:
            native.execute("SELECT fencelock.seal(%s, 'reports')", (str(poison),))
    signed.source.add_key()
    signed.source.retire_key(signed.key.key_id, force=True)
    signed.guard.install_keys(signed.source)
    info: SourceInfo = signed.source.raise_epoch(reason="key lost")
    assert "is retired" in signed.refused(signed_by(signed.key, replace(poison, token=info.last_token + 2**40)))
    with signed.lease() as lease, signed.guard.transaction(lease) as native:
        write(native, "by the holder")
    assert signed.guarded.value() == "by the holder"


def test_requiring_signatures_is_shown_and_audited(signed: SignedStage) -> None:
    assert fencelock.inspect_resources(signed.url).signed == (RESOURCE,)
    signed.guard.require_signatures(False, reason="a test")
    assert fencelock.inspect_resources(signed.url).signed == ()
    actions = signed.guarded.database.rows("SELECT action, resource FROM fencelock.guard_audit ORDER BY id")
    assert [action for action, _ in actions] == ["install-keys", "require-signatures", "accept-unsigned"]
    with pytest.raises(fencelock.GuardError, match="resource unknown has no mark"):
        signed.guarded.guard("unknown").require_signatures(reason="a test")


def test_g12_a_repeated_acquire_is_signed_like_the_first(signed: SignedStage) -> None:
    client = SqlClient(signed.url)
    first, again = (client.acquire("lock", "claim") for _ in range(2))
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert first.signature.key_id == signed.key.key_id
    assert again == first._replace(remaining_ms=again.remaining_ms)
    client.release("lock", "claim")
    client.close()
