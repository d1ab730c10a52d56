"""The header of a message: what every broker's client makes of it, and what is refused."""

from pathlib import Path

import pytest

import fencelock
from fencelock.messages import HEADER, from_headers, to_headers

SEQUENCER = fencelock.Sequencer("source", "history", "planner", 7, "0123456789abcdef" * 2)
TEXT = str(SEQUENCER)


@pytest.mark.parametrize(
    "headers",
    [
        {HEADER: TEXT},
        {"traceparent": "00-1", "fencing-token": TEXT},
        {"FENCING-TOKEN": TEXT.encode()},
        {HEADER: [TEXT]},
        [("x", b"\xff"), (HEADER, TEXT.encode())],
        [(HEADER.encode(), TEXT.encode())],
    ],
    ids=["text", "another-case", "bytes", "list", "pairs", "pairs-of-bytes"],
)
def test_the_sequencer_is_found_in_what_a_client_hands_out(headers: object) -> None:
    assert from_headers(headers).sequencer == SEQUENCER


@pytest.mark.parametrize("headers", [None, {}, {"x": TEXT}, [], {HEADER: []}], ids=str)
def test_a_message_without_the_header_is_refused(headers: object) -> None:
    with pytest.raises(fencelock.UnfencedWriteError, match=r"has no header Fencing-Token: .* to_headers\(lease\)"):
        from_headers(headers)


@pytest.mark.parametrize(
    "headers",
    [{HEADER: TEXT, HEADER.lower(): TEXT}, [(HEADER, TEXT), (HEADER, TEXT)], {HEADER: [TEXT, TEXT]}],
    ids=["two-cases", "pairs", "list"],
)
def test_a_doubled_header_is_refused_even_with_equal_values(headers: object) -> None:
    with pytest.raises(fencelock.ConfigError, match="has 2 headers Fencing-Token, and may have one"):
        from_headers(headers)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("", "expected fl2"),
        (TEXT[:-30], "was cut off"),
        (f'"{TEXT}"', "expected fl2"),
        ("fl1.x.y", "of another version"),
        (b"\xff" + TEXT.encode(), "expected fl2"),
        (TEXT + "." * 2000, "expected fl2"),
        (None, "expected fl2"),
        (7, "expected fl2"),
    ],
    ids=["empty", "cut-off", "quoted", "another-version", "not-ascii", "too-long", "null", "a-number"],
)
def test_a_malformed_header_is_refused_without_its_value(value: object, complaint: str) -> None:
    expected = f"header Fencing-Token is not a sequencer: .*{complaint}"
    with pytest.raises(fencelock.ConfigError, match=expected) as raised:
        from_headers({HEADER: value})
    assert SEQUENCER.proof not in str(raised.value)


def test_a_lease_and_its_sequencer_give_the_same_headers(tmp_path: Path) -> None:
    with fencelock.connect(f"sqlite:///{tmp_path}/locks.db") as source:
        with source.lock("planner") as lease:
            assert to_headers(lease) == to_headers(lease.sequencer) == {HEADER: str(lease.sequencer)}
            assert from_headers(to_headers(lease)).sequencer == lease.sequencer
        with pytest.raises(fencelock.LeaseReleasedError):
            to_headers(lease)
