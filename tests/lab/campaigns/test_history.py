"""What is no history is refused with its line, and what is one is read whole."""

import json

import pytest

from fencelock_lab.campaigns.history import HistoryError, read_history
from tests.lab.campaigns.planted import Script, stale_writer, two_tenures


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


def without(number: int, *fields: str) -> list[str]:
    """Return the lines of a good history, one of which lacks some fields."""
    lines = two_tenures().lines()
    lines[number] = json.dumps({key: value for key, value in json.loads(lines[number]).items() if key not in fields})
    return lines


def happened(f: str, **facts: object) -> list[str]:
    """Return the lines of a good history in which something happens, on line 4."""
    return two_tenures().event(1.05, f, **facts).lines()


def ended(**facts: object) -> list[str]:
    """Return the lines of a good history whose final state has other facts."""
    *lines, last = two_tenures().final(("a", 1, 10), ("b", 2, 11)).lines()
    return [*lines, json.dumps(json.loads(last) | facts)]


def test_what_is_written_here_is_a_history() -> None:
    """The lines that other tests spoil."""
    assert (json.loads(two_tenures().lines()[4])["f"], json.loads(ended()[-1])["f"]) == ("read", "final")
    read_history(ended())
    read_history(happened("server-kill", servers=["etcd"], forgets=1.0))
    read_history(happened("jump", victim="1", seconds=-3600))
    read_history(happened("restore", resource="r", position=0, mark="0"))
    # A write that presented no token was accepted: a violation, and no mistake of the file.
    read_history(ended(counter=-998))


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (changed(0, ttl="0.5"), "its ttl is not a number of seconds"),
        (changed(0, ttl=float("nan")), "its ttl is not a number"),
        (changed(0, ttl=1e300), "its ttl is not a number"),
        (changed(0, ttl=True), "its ttl is not a number"),
        (changed(0, ttl=-1), "its ttl is below 0"),
        (changed(0, resources=None), "lacks 'resources'"),
        (changed(0, resources=["r"]), "its resources is not an object"),
        (changed(0, resources={"r": ["l"]}), "its resources is not text"),
        (changed(0, resources={}), "has no lock of resource 'r'"),
        (changed(0, faults=None), "its faults is not a list"),
        (changed(0, faults=[3]), "its faults is not text"),
        (['{"time": 1e999, "process": "v", "type": "info", "f": "begin"}'], "its time is not a whole number"),
        (["[" * 100_000], "line 1 .*RecursionError"),
        (changed(1, time=2**70), "its time is not a whole number"),
        (changed(1, f=["acquire"]), "line 2 .*its f is not text"),
        (changed(1, f="wrote"), "'wrote' is not an operation"),
        (changed(1, lock=["l"]), "line 2 .*TypeError"),
        (changed(3, type=["ok"]), "line 4 .*TypeError"),
        (changed(3, lock="other"), "it ends what was invoked at 'l'"),
        (changed(3, token=float("inf")), "its token is not a whole number"),
        (changed(3, token=1.5), "its token is not a whole number"),
        (changed(3, token="0"), "its token is not a whole number from 1"),
        (changed(3, token="11"), "its token is not that of its invoke"),
        (changed(3, until="soon"), "its until is not a whole number"),
        (without(4, "token"), "line 5 .*the read lacks 'token'"),
        (Script().call("1", "read", 1, 2, token="1").lines(), "line 3 .*the read lacks 'position'"),
        (two_tenures().write("1", 3, 4, 12, "a", 3).lines(), "a write 'a' was invoked before"),
        (two_tenures().final(at=1.75).lines(), "line 15 .*the final state of resource 'r' is given before"),
        (Script().write("1", 1, 3, 1, "a", 1).final(at=2).lines(), "line 4 .*the final state of resource 'r'"),
        (Script().call("1", "write", 1, 2, write="a", position=1).lines(), "line 2 .*the write lacks 'token'"),
        (Script().call("1", "write", 1, 2, token="1", position=1).lines(), "line 2 .*the write lacks 'write'"),
        (Script().call("1", "write", 1, 2, token="1", write="a").lines(), "line 2 .*the write lacks 'position'"),
        (Script().call("1", "write", 1, 2, token="1", write=["a"], position=1).lines(), "its write is not text"),
        (Script().call("1", "acquire", 1, 2).lines(), "line 3 .*the acquire lacks 'token'"),
        (Script().call("1", "release", 1, 2).lines(), "line 2 .*the release lacks 'token'"),
        (happened("begin", format=1, ttl=1), "there is no event of the name 'begin'"),
        (happened("quite", patience=1), "there is no event of the name 'quite'"),
        (happened("restore"), "line 4 .*lacks 'resource'"),
        (happened("restore", resource="r"), "lacks 'position'"),
        (happened("restore", resource="s", position=0), "no lock of resource 's'"),
        (happened("restore", resource="r", position="x"), "its position is not a whole number"),
        (happened("quiet"), "lacks 'patience'"),
        (happened("quiet", patience="x"), "its patience is not a number of seconds"),
        (two_tenures().event(1, "quiet", patience=1).event(2, "quiet", patience=1).lines(), "second 'quiet'"),
        (happened("freeze"), "lacks 'victim'"),
        (happened("freeze", victim=["1"]), "its victim is not text"),
        (happened("thaw", victim=3), "its victim is not text"),
        (happened("jump", victim="1"), "lacks 'seconds'"),
        (happened("partition", victim="1", seconds="long"), "its seconds is not a number"),
        (happened("server-kill"), "lacks 'servers'"),
        (happened("server-back", servers="etcd"), "its servers is not a list"),
        (happened("server-kill", servers=["etcd"], forgets="x"), "its forgets is not a number"),
        (ended(resource="s"), "no lock of resource 's'"),
        (ended(rows={}), "its rows are not a list"),
        (ended(rows=[["a", 1]]), "line .*ValueError"),
        (ended(rows=[[["a"], 1, "10"]]), "its write is not text"),
        (ended(rows=[["a", 1, "x"]]), "its token is not a whole number"),
        (ended(counter=1.5), "its counter is not a whole number"),
        ([*ended(), ended()[-1]], "of resource 'r' is given before"),
    ],
)
def test_a_line_that_could_not_be_judged_is_refused(lines: list[str], complaint: str) -> None:
    with pytest.raises(HistoryError, match=complaint):
        read_history(lines)


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
        (changed(3, token="x"), "line 4 .*its token is not a whole number"),
        (changed(1, type="ok"), "line 2 .*no open acquire"),
        (changed(3, type="perhaps"), "line 4 .*perhaps"),
        (two_tenures().lines()[:2] * 2, "line 3 .*is before"),
        (Script().read("1", 1, None, 1, 0).read("1", 2, 3, 1, 0).lines(), "line 3 .*before its read has ended"),
    ],
)
def test_what_is_no_history_is_refused_with_its_line(lines: list[str], complaint: str) -> None:
    with pytest.raises(HistoryError, match=complaint):
        read_history(lines)
