"""The values of `model.py`: the values that they accept and refuse; none shows a secret."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelock import BrokenLock, ConfigError, Sequencer
from fencelock.model import (
    EPOCH_STRIDE,
    MAX_HOLDER_BYTES,
    MAX_LOCK_NAME_BYTES,
    MAX_REASON_BYTES,
    MAX_TOKEN,
    TOKENS_PER_S,
    YEAR_2026_S,
    SigningKey,
    check_holder,
    check_lock_name,
    check_reason,
    check_resource_name,
    check_token,
    default_holder,
    digest_of_claim,
    draw_claim,
    one_way,
    token_ceiling,
)
from fencelock.model import _host_and_program as host_and_program

PROOF = "5ec7e75e" * 4

# 128 characters have 512 bytes at most.
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=128)
tokens = st.integers(1, MAX_TOKEN)


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


# --- secrets ---
def test_no_repr_shows_a_proof() -> None:
    sequencer = Sequencer("source", "history", "lock", 7, PROOF)
    for value in (sequencer, BrokenLock("lock", 7, "holder", sequencer)):
        for shown in (repr(value), f"{value!r}", repr([value])):
            assert PROOF not in shown
            assert "7" in shown


def test_no_repr_shows_a_key() -> None:
    assert "secret" not in repr(SigningKey("k1", b"a secret"))


@given(st.binary(max_size=64))
def test_two_hashes_of_a_claim_are_the_documented_ones(raw: bytes) -> None:
    """What SQL, shell and C compute: SHA-256 over a prefix and the text, the first 32 hexadecimal digits."""
    claim = raw.hex()
    proof = hashlib.sha256(b"fencelock claim\0" + claim.encode()).hexdigest()[:32]
    assert one_way(claim) == proof
    assert digest_of_claim(claim) == hashlib.sha256(b"fencelock claim\0" + proof.encode()).hexdigest()[:32]


# --- the ceiling ---
@pytest.mark.parametrize(
    ("unix_s", "mark", "ceiling"),
    [
        (YEAR_2026_S, 0, 2**50),
        (YEAR_2026_S + 1, 0, 2**30 + 2**50),
        (YEAR_2026_S + 1.9, 0, 2**30 + 2**50),
        (0, 0, 2**50),  # A clock that was never set.
        (-1e18, 5, 5 + 2**50),
        (0, 2**60, 2**60 + 2**50),  # Never below the mark, whatever the clock says.
        (YEAR_2026_S, MAX_TOKEN, MAX_TOKEN),
        (1e18, 0, MAX_TOKEN),
    ],
)
def test_g12_ceiling_is_what_a_source_can_have_issued_by_now(unix_s: float, mark: int, ceiling: int) -> None:
    assert token_ceiling(unix_s, mark) == ceiling


@given(st.integers(0, 2**34), st.integers(0, MAX_TOKEN))
def test_g12_tokens_of_a_genuine_source_are_below_the_ceiling(seconds: int, mark: int) -> None:
    """A new history begins above 2**30 tokens for each second since 2026, at the next multiple of 2**40."""
    begun = ((seconds * TOKENS_PER_S) // EPOCH_STRIDE + 1) * EPOCH_STRIDE
    assert min(begun, MAX_TOKEN) <= token_ceiling(YEAR_2026_S + seconds, 0)
    assert token_ceiling(YEAR_2026_S + seconds, mark) >= mark


@pytest.mark.parametrize("token", [1_800_000_000 * 10**9, 2**62 + 12345, 0x7FFFFFFFFFFFFFFF])
def test_g12_accidents_are_above_the_ceiling(token: int) -> None:
    """A timestamp in nanoseconds, a random 63-bit number, the highest one."""
    assert token > token_ceiling(YEAR_2026_S + 10 * 365 * 86_400, 0)


def test_claims_are_drawn_from_128_bits() -> None:
    drawn = {draw_claim() for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(len(claim) == 32 and int(claim, 16) >= 0 for claim in drawn)
