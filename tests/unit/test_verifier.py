"""`fencelock.Verifier`: what a service that was handed a sequencer accepts, and by which name it refuses the rest."""

import base64
import hashlib
import hmac
import time
from dataclasses import replace
from pathlib import Path

import pytest

import fencelock
from fencelock import (
    ConfigError,
    ForgedSequencerError,
    ImplausibleTokenError,
    Sequencer,
    SigningKey,
    StaleTokenError,
    WrongLockError,
)
from fencelock.model import one_way, token_ceiling
from fencelock.verifier import Verifier, read_keys, sign, write_keys

KEY = SigningKey("k1", bytes(range(32)))
OTHER = SigningKey("k2", bytes(32))
PLAIN = Sequencer("source", "history", "billing/eu", 42, one_way("claim"))
SIGNED = sign(PLAIN, KEY)
VERIFIER = Verifier([KEY, OTHER], source_id="source", locks="billing/*")


def test_a_signed_sequencer_is_returned() -> None:
    assert VERIFIER.verify(str(SIGNED)) == PLAIN
    assert VERIFIER.verify(str(SIGNED), mark=42).key_id == "k1"
    assert VERIFIER.verify(str(sign(PLAIN, OTHER))) == PLAIN


def test_the_signature_is_the_beginning_of_the_hmac_of_the_text() -> None:
    """By the words of the reference alone, as another language would do it."""
    text, _, signature = str(SIGNED).rpartition(".")
    digest = hashlib.sha256(b"fencelock claim\0" + SIGNED.proof.encode()).hexdigest()[:32]
    covered = b"fencelock sequencer v2\0" + text.replace(SIGNED.proof, digest).encode()
    expected = hmac.new(KEY.secret, covered, hashlib.sha256).digest()[:16]
    assert signature == base64.urlsafe_b64encode(expected).rstrip(b"=").decode()
    assert len(signature) == 22


def resigned(sequencer: Sequencer) -> str:
    """Return the text of a sequencer with the key's id, signed by somebody who does not have the key."""
    return str(sign(sequencer, SigningKey("k1", b"a forger's own key".ljust(32))))


REFUSED = {
    "unsigned": (str(PLAIN), "not signed"),
    "an unknown key": (str(sign(PLAIN, replace(KEY, key_id="k9"))), "key k9, which is unknown"),
    "the id of another key": (str(SIGNED).replace(".k1.", ".k2."), "not the one that key k2 makes"),
    "another lock": (str(replace(SIGNED, lock="billing/us")), "not the one that key k1 makes"),
    "another source": (str(replace(SIGNED, source_id="other")), "not the one that key k1 makes"),
    "another history": (str(replace(SIGNED, history_id="other")), "not the one that key k1 makes"),
    "another token": (str(replace(SIGNED, token=43)), "not the one that key k1 makes"),
    "another proof": (str(replace(SIGNED, proof=one_way("x"))), "not the one that key k1 makes"),
    "signed again": (resigned(replace(PLAIN, token=43)), "not the one that key k1 makes"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_forged_sequencer_is_refused_and_not_quoted(kind: str) -> None:
    text, reason = REFUSED[kind]
    with pytest.raises(ForgedSequencerError, match=reason) as caught:
        VERIFIER.verify(text)
    assert PLAIN.proof not in str(caught.value)
    assert text.rpartition(".")[2] not in str(caught.value) or text.endswith(".")


@pytest.mark.parametrize(
    "text",
    [
        str(SIGNED)[:-1],
        str(SIGNED).rpartition(".")[0],
        str(SIGNED).replace(".x.", ".s."),
        str(SIGNED).replace("fl2.", "fl1."),
        f"{SIGNED} ",
        str(SIGNED).replace(".42.", ".042."),
        "",
    ],
)
def test_a_text_that_is_no_sequencer_is_refused(text: str) -> None:
    with pytest.raises((ConfigError, ForgedSequencerError)):
        VERIFIER.verify(text)


def test_a_retired_key_verifies_nothing() -> None:
    retired = Verifier([replace(KEY, retired_s=1), OTHER], source_id="source")
    with pytest.raises(ForgedSequencerError, match="key k1, which is retired"):
        retired.verify(str(SIGNED))
    assert retired.verify(str(sign(PLAIN, OTHER))) == PLAIN


@pytest.mark.parametrize("changes", [{"lock": "shipping"}, {"lock": "billing"}, {"source_id": "other"}])
def test_a_genuine_sequencer_of_another_lock_or_source_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(WrongLockError, match=r"accepted is 'billing/\*' of source source"):
        VERIFIER.verify(str(sign(replace(PLAIN, **changes), KEY)))


def test_the_name_of_a_lock_stands_for_that_lock_alone() -> None:
    one = Verifier([KEY], source_id="source", locks="billing/eu")
    assert one.verify(str(SIGNED)) == PLAIN
    with pytest.raises(WrongLockError):
        one.verify(str(sign(replace(PLAIN, lock="billing/eu2"), KEY)))


def test_a_token_below_the_mark_is_stale() -> None:
    with pytest.raises(StaleTokenError, match="token 42 of lock 'billing/eu' is below mark 43") as caught:
        VERIFIER.verify(str(SIGNED), mark=43)
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (42, 43, "billing/eu")


def test_a_token_that_nobody_can_have_issued_is_implausible() -> None:
    """Though it is signed: a source whose clock is wrong. The mark raises the ceiling, and so does the caller."""
    high = token_ceiling(time.time(), 0) + 2**40
    text = str(sign(replace(PLAIN, token=high), KEY))
    with pytest.raises(ImplausibleTokenError, match=f"token {high}") as caught:
        VERIFIER.verify(text)
    assert caught.value.token == high
    assert high - 2**42 < caught.value.ceiling < high
    assert VERIFIER.verify(text, mark=high - 1).token == high
    assert Verifier([KEY], source_id="source", ceiling=False).verify(text).token == high


# --- the file of keys -------------------------------------------------------------------------------------------------
def test_the_file_of_keys_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write_keys(path, "source", [KEY, replace(OTHER, retired_s=7)])
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_keys(path) == ("source", (KEY, replace(OTHER, retired_s=7)))
    assert fencelock.Verifier.from_file(path, locks="billing/*").verify(str(SIGNED)) == PLAIN
    with pytest.raises(FileExistsError):
        write_keys(path, "source", [])
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            Verifier.from_file(path)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"source_id": "s", "keys": [{"key_id": "k", "secret": "0g"}]}', "[1]", "\xff"]
)
def test_another_file_is_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="is not a file that `fencelock keys export` wrote") as caught:
        Verifier.from_file(path)
    assert "0g" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Verifier.from_file(tmp_path / "none")


def test_no_repr_shows_a_secret() -> None:
    shown = f"{VERIFIER!r} {KEY!r} {SIGNED!r}"
    assert KEY.secret.hex() not in shown
    assert repr(KEY.secret) not in shown
    assert "k1" in repr(VERIFIER)
