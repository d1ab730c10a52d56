"""What is no history is refused with its line, and what is one is read whole."""

import json

import pytest

from fenceline.verify.history import HistoryError, read_history
from tests.verify.planted import Script, stale_writer, two_tenures


def changed(number: int, **facts: object) -> list[str]:
    """Return the lines of a good history, of which one has other facts."""
    lines = two_tenures().lines()
    lines[number] = json.dumps(json.loads(lines[number]) | facts)
    return lines


def test_operations_are_paired_and_tokens_are_integers() -> None:
    history = stale_writer().write("1", 3.0, None, 10, "a", 1).history()
    write = history.operations[-1]
    assert (write.process, write.kind, write.token, write.write, write.outcome) == ("1", "write", 10, "a", "info")
    assert write.ended_ns == float("inf")
    assert [(event.kind, event.victim) for event in history.events] == [("freeze", "1"), ("thaw", "1")]
    assert history.lock_of("r") == "l"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "empty"),
        (["nonsense"], "line 1 .*JSON"),
        (["[1]"], "line 1 .*TypeError"),
        (two_tenures().lines()[1:], "line 1 .*begins with"),
        (changed(0, format=2), "line 1 .*begins with"),
        (changed(0, ttl=0), "line 1 .*begins with"),
        (changed(3, time=1), "line 4 .*is before"),
        (changed(3, token="x"), "line 4 .*ValueError"),
        (changed(1, type="ok"), "line 2 .*no open acquire"),
        (changed(3, type="perhaps"), "line 4 .*perhaps"),
        (two_tenures().lines()[:2] * 2, "line 3 .*is before"),
        (Script().call("1", "read", 1, None).call("1", "read", 2, 3).lines(), "line 3 .*before its read has ended"),
    ],
)
def test_what_is_no_history_is_refused_with_its_line(lines: list[str], complaint: str) -> None:
    with pytest.raises(HistoryError, match=complaint):
        read_history(lines)
