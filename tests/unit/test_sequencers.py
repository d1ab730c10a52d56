"""The text of sequencers: one spelling for each value, nothing read leniently, and nothing secret in an error."""

import base64
import itertools
import pickle
import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelock import ConfigError, Sequencer
from fencelock._sequencer_text import MAX_SEQUENCER_CHARACTERS, UNSIGNED
from fencelock.errors import ForgedSequencerError
from fencelock.model import MAX_LOCK_NAME_BYTES, MAX_TOKEN, SEQUENCER_VARIABLE, SigningKey, one_way
from fencelock.verifier import Verifier, sign

PROOF = "5ec7e75e" * 4
TEXT = f"fl2.0.source.history.x.7.{PROOF}.bG9jaw."
SIGNATURE = "c2lnbmF0dXJlLXNlY3JldA"
PARTS = TEXT.split(".")
PROOF_PLACE = PARTS.index(PROOF)
KEY = SigningKey("k1", bytes(range(32)))

# 128 characters have 512 bytes at most.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=128)
IDENTIFIER_CHARACTERS = string.ascii_letters + string.digits + "_-"
identifiers = st.text(IDENTIFIER_CHARACTERS, min_size=1, max_size=64)
proofs = st.text("0123456789abcdef", min_size=32, max_size=32)
signatures = st.tuples(
    identifiers.filter(lambda key_id: key_id != UNSIGNED), st.text(IDENTIFIER_CHARACTERS, min_size=22, max_size=22)
)
tokens = st.integers(1, MAX_TOKEN)
sequencers = st.builds(
    lambda signed, *parts: Sequencer(*parts, key_id=signed[0], signature=signed[1]),
    st.just((UNSIGNED, "")) | signatures,
    identifiers, identifiers, names, tokens, proofs,
)  # fmt: skip


# --- one spelling ---
@pytest.mark.reduced
@given(sequencers)
def test_sequencer_survives_its_text(sequencer: Sequencer) -> None:
    text = str(sequencer)
    parsed = Sequencer.parse(text)
    assert text.isascii()
    assert len(text) <= MAX_SEQUENCER_CHARACTERS
    assert (parsed, parsed.key_id, parsed.signature) == (sequencer, sequencer.key_id, sequencer.signature)
    assert str(parsed) == text


def test_longest_sequencer_is_short_enough() -> None:
    longest = Sequencer("s" * 64, "h" * 64, "x" * MAX_LOCK_NAME_BYTES, MAX_TOKEN, PROOF, "x", "k" * 64, "a" * 22)
    assert len(str(longest)) <= MAX_SEQUENCER_CHARACTERS
    assert Sequencer.parse(str(longest)) == longest
    with pytest.raises(ConfigError, match="more than 1000 characters"):
        Sequencer.parse(TEXT + "A" * MAX_SEQUENCER_CHARACTERS)


@given(sequencers)
def test_sequencer_is_a_value(sequencer: Sequencer) -> None:
    assert pickle.loads(pickle.dumps(sequencer)) == sequencer  # noqa: S301 - what was just dumped
    assert {sequencer: 1}[Sequencer.parse(str(sequencer))] == 1
    with pytest.raises(AttributeError):
        sequencer.token = 1  # type: ignore[misc]


def test_sequencer_has_the_documented_form() -> None:
    sequencer = Sequencer("source", "history", "lock", 7, PROOF)
    assert str(sequencer) == TEXT
    assert sequencer.mode == "x"
    assert sequencer.digest == one_way(PROOF)
    signed = Sequencer("source", "history", "lock", 7, PROOF, "x", "k1", SIGNATURE)
    assert str(signed) == TEXT.replace(".0.", ".k1.") + SIGNATURE
    shown = str(signed).rpartition(".")[0]
    assert signed.signed_bytes == b"fencelock sequencer v2\0" + shown.replace(PROOF, one_way(PROOF)).encode()


def test_signature_is_not_what_makes_a_tenure() -> None:
    """The unsigned text of a signed grant is the same tenure: a mark keeps neither the key's id nor the signature."""
    sequencer = Sequencer("source", "history", "lock", 7, PROOF)
    assert sign(sequencer, KEY) == sequencer


# --- nothing else is read ---
def with_part(place: int, value: str) -> str:
    return ".".join([*PARTS[:place], value, *PARTS[place + 1 :]])


def malformed() -> list[str]:
    return [
        "",
        "fl2",
        "fl2........",
        TEXT + ".",
        "." + TEXT,
        TEXT + "\n",
        " " + TEXT,
        TEXT.replace(".", ":"),
        TEXT[:-1],
        TEXT + SIGNATURE,  # A signature without a key.
        with_part(1, "k1"),  # A key without a signature.
        with_part(1, "k1") + SIGNATURE[1:],
        with_part(1, "k1") + SIGNATURE + "A",
        with_part(1, "k1") + SIGNATURE[1:] + "=",
        with_part(0, "fl1"),
        with_part(0, "fl3"),
        with_part(0, "FL2"),
        with_part(1, ""),
        with_part(1, "00"),
        with_part(2, ""),
        with_part(2, "a b"),
        with_part(2, "x" * 65),
        with_part(3, "histoire\u0301"),
        with_part(4, "s"),
        with_part(4, ""),
        with_part(5, "0"),
        with_part(5, "-7"),
        with_part(5, "+7"),
        with_part(5, "07"),
        with_part(5, " 7"),
        with_part(5, "7.0"),
        with_part(5, "7_0"),
        with_part(5, "\N{ARABIC-INDIC DIGIT SEVEN}"),
        with_part(5, "7e3"),
        with_part(5, str(2**63)),
        with_part(5, "9" * 20),
        with_part(6, ""),
        with_part(6, PROOF[1:]),
        with_part(6, PROOF + "0"),
        with_part(6, PROOF.upper()),
        with_part(6, "g" + PROOF[1:]),
        with_part(7, ""),
        with_part(7, "bG9jaw=="),
        with_part(7, "bG9jax"),  # Bits beyond the last byte.
        with_part(7, "b"),
        with_part(7, "/+=="),
        with_part(7, "é"),
        with_part(7, base64.urlsafe_b64encode(b"\xff\xfe").decode().rstrip("=")),
        with_part(7, base64.urlsafe_b64encode(b"a\0b").decode().rstrip("=")),
        with_part(7, base64.urlsafe_b64encode(b"x" * 513).decode().rstrip("=")),
        f"fl1.source.history.x.7.{PROOF}.bG9jaw",  # The former format.
    ]


@given(sequencers, st.data())
def test_a_text_that_was_cut_off_anywhere_is_named_as_that(sequencer: Sequencer, data: st.DataObject) -> None:
    for whole in (str(sequencer), str(replace(sequencer, key_id="k1", signature=SIGNATURE))):
        length = data.draw(st.integers(len("fl2"), len(whole) - 1))
        with pytest.raises(ConfigError, match=f"not a sequencer: it was cut off, after {length} characters"):
            Sequencer.parse(whole[:length])


@pytest.mark.parametrize("version", ["fl1", "fl3"])
def test_another_versions_format_is_named(version: str) -> None:
    with pytest.raises(
        ConfigError, match=f"it has the format {version}, of another version of fencelock, and this one"
    ):
        Sequencer.parse(TEXT.replace("fl2", version))


def test_a_damaged_signature_is_named() -> None:
    with pytest.raises(ConfigError, match="signature must be 22 characters of base64url"):
        Sequencer.parse(with_part(1, "k1") + SIGNATURE[1:] + "=")


@pytest.mark.reduced
@pytest.mark.parametrize("text", malformed())
def test_malformed_sequencer_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sequencer.parse(text)
    assert PROOF not in str(caught.value)
    assert PROOF[1:] not in str(caught.value)


@given(st.text())
def test_text_that_is_no_sequencer_is_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        Sequencer.parse(text)


@given(sequencers, st.data())
def test_sequencer_with_one_character_changed_is_another_one_or_refused(sequencer: Sequencer, data: Any) -> None:
    text = str(sequencer)
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.characters()) + text[place + 1 :]
    parsed = parsed_or_none(changed)
    assert parsed is None or str(parsed) == changed  # One text for each value: nothing is read leniently.


def parsed_or_none(text: str) -> Sequencer | None:
    try:
        return Sequencer.parse(text)
    except ConfigError:
        return None


@pytest.mark.parametrize("text", [TEXT, str(sign(Sequencer.parse(TEXT), KEY))], ids=["unsigned", "signed"])
def test_every_truncation_and_every_swap_of_parts_is_refused_or_another_one(text: str) -> None:
    original = Sequencer.parse(text)
    parts = text.split(".")
    changed = [text[:length] for length in range(len(text))]
    for one, other in itertools.combinations(range(len(parts)), 2):
        swapped = list(parts)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        changed.append(".".join(swapped))
    for candidate in changed:
        if candidate != text and (parsed := parsed_or_none(candidate)) is not None:
            assert str(parsed) == candidate
            assert (parsed, parsed.key_id, parsed.signature) != (original, original.key_id, original.signature)


@given(sequencers.filter(lambda one: one.token < MAX_TOKEN), st.data())
def test_no_change_of_a_signed_sequencer_is_verified(sequencer: Sequencer, data: Any) -> None:
    """One character, a truncation, a part of another one, or another's signature."""
    verifier = Verifier([KEY], source_id=sequencer.source_id, ceiling=False)
    text = str(sign(sequencer, KEY))
    assert str(verifier.verify(text)) == text
    place = data.draw(st.integers(0, len(text) - 1))
    other = str(sign(replace(sequencer, token=sequencer.token + 1), KEY)).split(".")
    replaced = text.split(".")
    replaced[-1] = other[-1]
    changes = (
        text[:place] + data.draw(st.characters()) + text[place + 1 :],
        text[:place],
        ".".join(replaced),
        ".".join([*other[:-1], text.rsplit(".", maxsplit=1)[-1]]),
        str(sign(sequencer, replace(KEY, secret=b"another key"))),
        str(sign(sequencer, replace(KEY, key_id="k2"))),
        str(replace(sequencer, key_id=UNSIGNED, signature="")),
    )
    for changed in changes:
        if changed != text:
            with pytest.raises((ConfigError, ForgedSequencerError)):
                verifier.verify(changed)


@pytest.mark.parametrize("field", ["source_id", "history_id", "proof", "lock", "mode", "token", "key_id", "signature"])
@pytest.mark.parametrize("value", [None, 7.5, b"bytes", "", "a.b", ["x"]])
def test_sequencer_made_by_hand_is_checked_too(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"source_id": "s", "history_id": "h", "lock": "l", "token": 7, "proof": PROOF}
    if [field, value] in (["lock", "a.b"], ["signature", ""]):
        return  # A dot is as good as any other character in a lock's name, and an unsigned one has no signature.
    with pytest.raises(ConfigError):
        Sequencer(**{**fields, field: value})


def test_sequencer_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"FENCELOCK_SEQUENCER is not set: start this program by `fencelock run"):
        Sequencer.from_env()
    monkeypatch.setenv(SEQUENCER_VARIABLE, TEXT)
    assert Sequencer.from_env() == Sequencer("source", "history", "lock", 7, PROOF)
    monkeypatch.setenv(SEQUENCER_VARIABLE, TEXT + ".x")
    with pytest.raises(ConfigError, match="not a sequencer"):
        Sequencer.from_env()


# --- nothing secret is shown ---
@given(sequencers)
def test_no_repr_shows_a_proof_or_a_signature(sequencer: Sequencer) -> None:
    proof, signature = one_way(str(sequencer)), one_way(str(sequencer) + "signed")[:22]
    shown = repr([replace(sequencer, proof=proof, key_id="k1", signature=signature)])
    assert proof not in shown
    assert signature not in shown


@given(sequencers, st.data())
def test_no_error_about_a_changed_sequencer_shows_its_proof(sequencer: Sequencer, data: Any) -> None:
    sequencer = replace(sequencer, proof=one_way(str(sequencer)))
    text = str(sequencer)
    parts = data.draw(st.permutations(text.split(".")))
    for changed in (".".join(parts), text + ".", text[:-1] + "!", text.replace(".", " ", 1)):
        assert sequencer.proof not in error_of(changed)


def error_of(text: str) -> str:
    try:
        return Sequencer.parse(text).lock  # No error: the parts were put back as they were.
    except ConfigError as error:
        return str(error)
