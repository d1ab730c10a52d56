"""Whatever a client sends in the fields becomes an answer of 4xx: never a 500, and never a write.

Deterministic: every run draws the same examples. The campaigns draw more.
"""

import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencelock._remote.seals import MAX_SEAL_IDS
from tests.http.frameworks import FRAMEWORKS, Report
from tests.http.wire import Fields, Service
from tests.shown_secrets import note_shown
from tests.support.guards import make_file, sequencer, value_in

VALID = f'"{sequencer(5)}"'
PIECES = ("fl2", "fl3", ".", '"', ",", ";", "=", "\\", " ", "\t", "seal", "0" * 32, "9" * 30, "bmln", "x", "é", "\x00")
SEAL = '"9f3ab2c1d4e5f607"'

shuffled = st.lists(st.sampled_from([*PIECES, *VALID.strip('"').split("."), VALID]), max_size=12).map("".join)
cut = st.tuples(st.integers(0, len(VALID)), st.integers(0, len(VALID))).map(lambda at: VALID[min(at) : max(at)])
changed = st.tuples(st.integers(0, len(VALID) - 1), st.characters(max_codepoint=255)).map(
    lambda at: VALID[: at[0]] + at[1] + VALID[at[0] + 1 :]
)
raw = st.text(st.characters(max_codepoint=255), max_size=40)
long = st.integers(900, 70_000).map(lambda size: f'"{"a" * size}"')
broken = st.one_of(shuffled, cut, changed, raw, long)

tokens = st.lists(st.one_of(broken, st.just(VALID)), max_size=3)
seals = st.lists(st.one_of(broken, st.just(SEAL), st.lists(st.just(SEAL), max_size=300).map(", ".join)), max_size=2)
keys = st.lists(broken, max_size=2)
requests = st.tuples(tokens, seals, keys)


@cache
def report() -> Report:
    """Return one report for all examples: nothing that they send writes to it."""
    return Report(make_file(Path(tempfile.mkdtemp()) / "app.db"))


@cache
def service(kind: str) -> Service:
    """Return a service."""
    return FRAMEWORKS[kind](report(), guards=[report().guard])


def refuse_all(kind: str, drawn: tuple[list[str], list[str], list[str]]) -> None:
    """Send requests with these values, and find that each is refused, or was valid and changed nothing."""
    fields: Fields = [("Fencing-Token", value) for value in drawn[0]]
    fields += [("Fencing-Sealed", value) for value in drawn[1]]
    fields += [("Idempotency-Key", value) for value in drawn[2]]
    for method, path in (("PUT", "/unguarded"), ("POST", "/report/0"), ("POST", "/.well-known/fencing/seal")):
        reply = service(kind).send(method, path, fields)
        assert reply.status < 500, reply.error
        if reply.status >= 400:
            assert reply.kind is not None
            assert reply.problem is not None
            assert reply.field("cache-control") == "no-store"
        note_shown(reply.body.decode())
        assert sequencer(5).proof not in reply.body.decode()


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@given(drawn=requests)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_whatever_the_fields_are_the_answer_is_no_500(kind: str, drawn: tuple[list[str], list[str], list[str]]) -> None:
    refuse_all(kind, drawn)
    assert value_in(report().path) == 0


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", FRAMEWORKS)
@given(drawn=requests)
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
def test_more_fields_are_no_500(kind: str, drawn: tuple[list[str], list[str], list[str]]) -> None:
    refuse_all(kind, drawn)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Fencing-Token", str(sequencer(5))),
        ("Fencing-Token", f'"{sequencer(5)}";a=1'),
        ("Fencing-Token", f'"{sequencer(5)}", "{sequencer(6)}"'),
        ("Fencing-Token", '""'),
        ("Fencing-Token", ""),
        ("Fencing-Sealed", "?1"),
        ("Fencing-Sealed", "9f3ab2c1d4e5f607"),
        ("Fencing-Sealed", '"9F3AB2C1D4E5F607"'),
        ("Fencing-Sealed", '"9f3ab2c1d4e5f607",'),
        ("Fencing-Sealed", ", ".join([SEAL] * (MAX_SEAL_IDS + 1))),
    ],
)
@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_a_field_that_is_nearly_right_is_refused(kind: str, name: str, value: str) -> None:
    fields = [(name, value)] if name == "Fencing-Token" else [("Fencing-Token", VALID), (name, value)]
    reply = service(kind).send("PUT", "/unguarded", fields)
    assert (reply.status, reply.kind) == (400, "malformed-token")


@pytest.mark.parametrize(
    "value", ['  "9f3ab2c1d4e5f607" ,\t"0000000000000000"', SEAL, "", ", ".join([SEAL] * MAX_SEAL_IDS)]
)
def test_a_list_may_have_spaces_and_may_be_empty(value: str) -> None:
    for kind in ("asgi", "wsgi"):
        reply = service(kind).send("PUT", "/unguarded", [("Fencing-Token", VALID), ("Fencing-Sealed", value)])
        assert reply.status == 200
