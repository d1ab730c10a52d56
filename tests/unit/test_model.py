"""The values of `model.py`: the values that they accept and refuse; none shows a claim."""

import base64
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelock import BrokenLock, ConfigError, Mark, Sequencer
from fencelock.model import (
    MAX_HOLDER_BYTES,
    MAX_LOCK_NAME_BYTES,
    MAX_REASON_BYTES,
    MAX_TOKEN,
    SEQUENCER_VARIABLE,
    check_holder,
    check_lock_name,
    check_reason,
    check_resource_name,
    check_token,
    default_holder,
    draw_claim,
)
from fencelock.model import _host_and_program as host_and_program

CLAIM = "5ec7e7" * 5
TEXT = f"fl1.source.history.x.7.{CLAIM}.bG9jaw"

# 128 characters have 512 bytes at most.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=128)
identifiers = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
tokens = st.integers(1, MAX_TOKEN)
sequencers = st.builds(Sequencer, identifiers, identifiers, names, tokens, identifiers)


# --- names ---
@pytest.mark.reduced
@given(names)
def test_any_text_that_utf8_carries_is_a_lock_name(name: str) -> None:
    assert check_lock_name(name) == name


@pytest.mark.parametrize(
    "name", ["x" * MAX_LOCK_NAME_BYTES, "é" * (MAX_LOCK_NAME_BYTES // 2), " ", "\n", "../..", "😀"]
)
def test_lock_name_at_the_edge_of_the_contract_is_accepted(name: str) -> None:
    assert check_lock_name(name) == name
    assert check_resource_name(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "must not be empty"),
        ("x" * (MAX_LOCK_NAME_BYTES + 1), r"512 bytes of UTF-8 at most; this one has 513"),
        ("é" * (MAX_LOCK_NAME_BYTES // 2) + "x", r"512 bytes of UTF-8 at most; this one has 513"),
        ("a\0b", r"U\+0000: leave it out"),
        ("a\ud800b", "lone surrogate: use text that UTF-8 can encode"),
        (b"bytes", "must be a str, not bytes"),
        (None, "must be a str, not NoneType"),
        (7, "must be a str, not int"),
    ],
)
def test_lock_name_outside_the_contract_is_refused_with_the_contract(name: Any, said: str) -> None:
    for check in (check_lock_name, check_resource_name, check_holder):
        with pytest.raises(ConfigError, match=said):
            check(name)


def test_blank_or_overlong_reason_is_refused() -> None:
    assert check_reason(" why ") == " why "
    for reason in ("", "  \n", "x" * (MAX_REASON_BYTES + 1), "\ud800", None):
        with pytest.raises(ConfigError, match="reason"):
            check_reason(reason)


@pytest.mark.parametrize("program", ["", "/bin/job", "job\udcff", "a\0b", "x" * 5000, "/"])
def test_default_holder_is_a_holder_whatever_the_program_calls_itself(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program])
    host_and_program.cache_clear()
    try:
        assert check_holder(default_holder()).count(":") == 2
    finally:
        host_and_program.cache_clear()
    assert len(default_holder().encode()) <= MAX_HOLDER_BYTES


# --- tokens (T2) ---
@given(tokens)
def test_t2_every_integer_from_1_to_below_2_to_the_63_is_a_token(token: int) -> None:
    assert check_token(token) == token
    assert int(json.loads(json.dumps(str(token)))) == token  # As JSON carries it: a decimal string.


@pytest.mark.reduced
@pytest.mark.parametrize(
    "token", [0, -1, 2**63, 2**64, 10**30, -(2**63), pytest.param(10**5000, id="too-long-to-print")]
)
def test_t2_integer_outside_the_range_is_no_token(token: int) -> None:
    with pytest.raises(ConfigError, match=r"1 <= token < 2\*\*63"):
        check_token(token)


@pytest.mark.parametrize("token", [1.0, "1", None, True, b"1"])
def test_t2_only_an_int_is_a_token(token: Any) -> None:
    with pytest.raises(ConfigError, match="must be an int, not"):
        check_token(token)


# --- sequencers ---
@pytest.mark.reduced
@given(sequencers)
def test_sequencer_survives_its_text(sequencer: Sequencer) -> None:
    text = str(sequencer)
    assert text.isascii()
    assert Sequencer.parse(text) == sequencer


@given(sequencers)
def test_sequencer_is_a_value(sequencer: Sequencer) -> None:
    assert pickle.loads(pickle.dumps(sequencer)) == sequencer  # noqa: S301 - what was just dumped
    assert {sequencer: 1}[Sequencer.parse(str(sequencer))] == 1
    with pytest.raises(AttributeError):
        sequencer.token = 1  # type: ignore[misc]


def test_sequencer_has_the_documented_form() -> None:
    sequencer = Sequencer("source", "history", "lock", 7, CLAIM)
    assert str(sequencer) == TEXT
    assert sequencer.mode == "x"


def malformed() -> list[str]:
    parts = TEXT.split(".")

    def with_part(place: int, value: str) -> str:
        return ".".join([*parts[:place], value, *parts[place + 1 :]])

    return [
        "",
        "fl1",
        "fl1......",
        TEXT + ".",
        "." + TEXT,
        TEXT + "\n",
        " " + TEXT,
        TEXT.replace(".", ":"),
        with_part(0, "fl2"),
        with_part(0, "FL1"),
        with_part(1, ""),
        with_part(1, "a b"),
        with_part(1, "x" * 65),
        with_part(2, "histoire\u0301"),
        with_part(3, "s"),
        with_part(3, ""),
        with_part(4, "0"),
        with_part(4, "-7"),
        with_part(4, "+7"),
        with_part(4, "07"),
        with_part(4, " 7"),
        with_part(4, "7.0"),
        with_part(4, "7_0"),
        with_part(4, "\N{ARABIC-INDIC DIGIT SEVEN}"),
        with_part(4, "7e3"),
        with_part(4, str(2**63)),
        with_part(4, "9" * 20),
        with_part(5, ""),
        with_part(6, ""),
        with_part(6, "bG9jaw=="),
        with_part(6, "bG9jax"),  # Bits beyond the last byte.
        with_part(6, "b"),
        with_part(6, "/+=="),
        with_part(6, "é"),
        with_part(6, base64.urlsafe_b64encode(b"\xff\xfe").decode().rstrip("=")),
        with_part(6, base64.urlsafe_b64encode(b"a\0b").decode().rstrip("=")),
        with_part(6, base64.urlsafe_b64encode(b"x" * 513).decode().rstrip("=")),
        # Shuffled: the claim where the mode, or the token, should be.
        ".".join([*parts[:3], CLAIM, "7", "x", parts[6]]),
        ".".join([*parts[:4], CLAIM, "7", parts[6]]),
    ]


@pytest.mark.reduced
@pytest.mark.parametrize("text", malformed())
def test_malformed_sequencer_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sequencer.parse(text)
    assert CLAIM not in str(caught.value)


@given(st.text())
def test_text_that_is_no_sequencer_is_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        Sequencer.parse(text)


@given(sequencers, st.data())
def test_sequencer_with_one_character_changed_is_another_one_or_refused(sequencer: Sequencer, data: Any) -> None:
    text = str(sequencer)
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.characters()) + text[place + 1 :]
    try:
        parsed = Sequencer.parse(changed)
    except ConfigError:
        return
    assert str(parsed) == changed  # One text for each value: nothing is read leniently.


@pytest.mark.parametrize("field", ["source_id", "history_id", "claim", "lock", "mode", "token"])
@pytest.mark.parametrize("value", [None, 7.5, b"bytes", "", "a.b", ["x"]])
def test_sequencer_made_by_hand_is_checked_too(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"source_id": "s", "history_id": "h", "lock": "l", "token": 7, "claim": CLAIM}
    if (field, value) == ("lock", "a.b"):
        return  # A dot is as good as any other character in a lock's name.
    with pytest.raises(ConfigError):
        Sequencer(**{**fields, field: value})


def test_sequencer_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"FENCELOCK_SEQUENCER is not set: start this program by `fencelock run"):
        Sequencer.from_env()
    monkeypatch.setenv(SEQUENCER_VARIABLE, TEXT)
    assert Sequencer.from_env() == Sequencer("source", "history", "lock", 7, CLAIM)
    monkeypatch.setenv(SEQUENCER_VARIABLE, TEXT + "x")
    with pytest.raises(ConfigError, match="not a sequencer"):
        Sequencer.from_env()


# --- secrets ---
def test_no_repr_shows_a_claim() -> None:
    sequencer = Sequencer("source", "history", "lock", 7, CLAIM)
    mark = Mark("resource", "lock", 7, "source", "history", CLAIM)
    for value in (sequencer, mark, BrokenLock("lock", 7, "holder", sequencer)):
        for shown in (repr(value), f"{value!r}", repr([value])):
            assert CLAIM not in shown
            assert "7" in shown


def test_claims_are_drawn_from_128_bits() -> None:
    drawn = {draw_claim() for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(len(claim) == 32 and int(claim, 16) >= 0 for claim in drawn)
