"""What the protocols share: fields, faults and back, a client's memory of seals, idempotency keys."""

import asyncio
import itertools
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from inspect import signature
from typing import Any

import pytest

from fencelock import ConfigError, FencelockError, GuardError, OutcomeUnknownError, UnfencedWriteError, errors
from fencelock._remote.carried import CarriedSequencer
from fencelock._remote.current import carrying, has_token, sequencer
from fencelock._remote.faults import KINDS, error_of, fault_of, malformed_key, malformed_token, token_required
from fencelock._remote.fields import decode_marks, decode_sealed, decode_string, encode_marks, encode_sealed
from fencelock._remote.idempotency_keys import RequestKeys
from fencelock._remote.seals import (
    MAX_ID_PARTS,
    MAX_SEAL_IDS,
    PassedSeals,
    RemoteMark,
    SealMemory,
    seal_id,
    wait_for_each,
    wait_for_each_async,
)
from fencelock.http.problems import CONTENT_TYPE, MAX_PROBLEM_BYTES, decode_problem, encode_problem
from fencelock.model import MAX_TOKEN
from tests.support.guards import raised_for
from tests.support.guards import sequencer as sequencer_of
from tests.support.helpers import ROOT

LATE_S = 0.05
MADE = {"token": 5, "mark": 6, "ceiling": 7, "resource": "r", "result": "{}", "holder": "h", "began_at": "2026-11-22"}
REFUSALS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, GuardError)]


def made(kind: type[FencelockError]) -> FencelockError:
    """Return an error of a class, with each of its attributes."""
    make: Any = kind
    wanted = signature(kind.__init__).parameters
    error: FencelockError = make("it was refused", **{name: MADE[name] for name in wanted if name in MADE})
    return error


# --- turns ------------------------------------------------------------------------------------------------------------
def test_the_limit_of_a_turn_is_one_for_all_who_are_before_it() -> None:
    """Each of them ends within the limit, and all together do not."""
    with pytest.raises(TimeoutError):
        wait_for_each(_ending_late(), 3 * LATE_S)
    with pytest.raises(TimeoutError):
        asyncio.run(wait_for_each_async(_ending_late(), 3 * LATE_S))
    wait_for_each(itertools.islice(_ending_late(), 2), None)


def _ending_late() -> Iterator[Future[None]]:
    for _ in range(12):
        other: Future[None] = Future()
        threading.Timer(LATE_S, other.set_result, [None]).start()
        yield other


# --- faults -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", REFUSALS, ids=lambda kind: kind.__name__)
def test_a_guards_error_comes_back_as_itself_with_its_numbers(kind: type[GuardError]) -> None:
    carried = CarriedSequencer(sequencer_of(5))
    error = raised_for(made(kind), carried)
    fault = fault_of(error, carried)
    assert fault is not None
    back = error_of(fault.kind, fault.detail, fault.fields, 5)
    known = KINDS[fault.kind]
    assert type(back) is known.error
    assert isinstance(error, known.error)
    assert {name: getattr(back, name) for name in known.attributes} == {
        name: getattr(error, name) for name in known.attributes
    }
    if known.status < 500:
        assert str(back) == str(error)


def test_each_kind_of_fault_is_a_problem_that_a_client_understands() -> None:
    carried = CarriedSequencer(sequencer_of(5))
    faults = [
        fault_of(raised_for(made(kind.error), carried), carried)
        for kind in KINDS.values()
        if kind.error is not ConfigError
    ]
    faults += [token_required("l"), malformed_token("why"), malformed_key("why")]
    assert {fault.kind for fault in faults if fault is not None} == set(KINDS)
    for fault in faults:
        assert fault is not None
        assert isinstance(
            decode_problem(f"{CONTENT_TYPE}; charset=utf-8", encode_problem(fault), 5), KINDS[fault.kind].error
        )


def test_every_kind_and_its_status_is_on_the_page() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", page, re.MULTILINE))
    assert rows == {kind.name: str(kind.status) for kind in KINDS.values() if kind.name != "already-done"}


def test_an_indefinite_error_never_becomes_a_definite_one() -> None:
    carried = CarriedSequencer(sequencer_of(5))
    error = raised_for(made(errors.SourceUnavailableError), carried)
    error.definite = False
    fault = fault_of(error, carried)
    assert fault is not None
    back = error_of(fault.kind, fault.detail, fault.fields, 5)
    assert isinstance(back, OutcomeUnknownError)
    assert not back.definite


@pytest.mark.parametrize(
    "error", [ConfigError("x"), errors.SchemaError("x"), errors.LeaseReleasedError("x"), KeyError()]
)
def test_a_fault_of_the_service_itself_is_told_to_nobody(error: Exception) -> None:
    carried = CarriedSequencer(sequencer_of(5))
    if isinstance(error, FencelockError):
        raised_for(error, carried)
    assert fault_of(error, carried) is None


@pytest.mark.parametrize(
    "fields", [{}, {"token": 5}, {"token": "5"}, {"token": "x", "mark": "6", "resource": "r"}, {"token": "1" * 40}]
)
def test_a_fault_with_a_member_missing_is_no_error_of_ours(fields: dict[str, object]) -> None:
    assert error_of("stale-token", "detail", fields, 5) is None
    assert error_of("no-such-kind", "detail", fields, 5) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"type": 1}',
        b'{"type": "about:blank", "detail": "x"}',
        b" " * (MAX_PROBLEM_BYTES + 1),
    ],
    ids=len,
)
def test_a_body_that_no_service_of_ours_has_written_is_no_problem(body: bytes) -> None:
    assert decode_problem(CONTENT_TYPE, body, 5) is None


def test_a_problem_of_another_content_type_is_none_of_ours() -> None:
    body = encode_problem(token_required())
    assert decode_problem("text/html", body, 5) is None
    assert isinstance(decode_problem("Application/Problem+JSON", body, 5), UnfencedWriteError)


# --- fields -----------------------------------------------------------------------------------------------------------
def test_fields_are_read_as_they_were_written() -> None:
    marks = (RemoteMark(1, "0" * 16), RemoteMark(MAX_TOKEN, "f" * 16))
    assert encode_marks(marks[:1]) == '"1";seal="0000000000000000"'
    assert decode_marks(encode_marks(marks)) == marks
    ids = tuple(f"{number:016x}" for number in range(MAX_SEAL_IDS))
    assert decode_sealed(encode_sealed(ids)) == ids
    passed = RemoteMark(5, "9f3ab2c1d4e5f607" * MAX_ID_PARTS)
    assert decode_marks(encode_marks([passed])) == (passed,)
    with pytest.raises(ValueError, match="not a list"):
        decode_sealed(encode_sealed([passed.seal_id + "0" * 16]))
    assert decode_string('"a b"', 3) == "a b"


@pytest.mark.parametrize(
    "field",
    [
        '"0";seal="0000000000000000"',
        f'"{MAX_TOKEN + 1}";seal="0000000000000000"',
        '"1"',
        '1;seal="0000000000000000"',
        "x",
    ],
)
def test_marks_that_are_none_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match="not a list of marks"):
        decode_marks(field)


@pytest.mark.parametrize("field", ['"abcd"', '"a\\"b"', '"a', "a", '"\x7f"', '"é"', '"a" "b"'])
def test_a_string_that_is_none_or_too_long_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="not one string"):
        decode_string(field, 3)


def test_a_list_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        decode_sealed(" " * 100_000)


# --- a client's memory ------------------------------------------------------------------------------------------------
def test_a_seal_id_tells_resources_and_urls_apart_and_shows_neither() -> None:
    ids = {seal_id((url, resource)) for url in ("sqlite:////a", "sqlite:////ab") for resource in ("b", "bb", "")}
    assert len(ids) == 6
    assert all(re.fullmatch(r"[0-9a-f]{16}", one) for one in ids)


def test_a_client_repeats_what_each_service_told_it() -> None:
    memory = SealMemory(5)
    memory.check_fenced("a", [RemoteMark(5, "1" * 16), RemoteMark(5, "2" * 16)])
    memory.remember("a", [RemoteMark(5, "2" * 16), RemoteMark(5, "0" * 16)])
    assert memory.ids("a") == ("1" * 16, "2" * 16, "0" * 16)
    assert memory.ids("b") == ()


@pytest.mark.parametrize("marks", [[], [RemoteMark(4, "1" * 16)], [RemoteMark(5, "1" * 16), RemoteMark(6, "2" * 16)]])
def test_a_success_that_no_guard_has_admitted_is_an_error(marks: list[RemoteMark]) -> None:
    with pytest.raises(UnfencedWriteError):
        SealMemory(5).check_fenced("a", marks)


def test_a_client_remembers_a_limited_number_of_seals() -> None:
    memory = SealMemory(5)
    memory.remember("a", [RemoteMark(5, f"{number:016x}") for number in range(MAX_SEAL_IDS)])
    with pytest.raises(GuardError, match="at most"):
        memory.remember("a", [RemoteMark(5, "f" * 16)])
    memory.remember("b", [RemoteMark(5, "f" * 16)])


def test_a_service_passes_on_what_it_was_told_of_another_one_and_nothing_else() -> None:
    first = PassedSeals(())
    SealMemory(5, first).remember("a", [RemoteMark(5, "1" * 16)])
    (told,) = first.begin_answer()
    second = PassedSeals(("2" * 16, told))
    memory = SealMemory(5, second)
    assert (memory.ids("a"), memory.ids("b")) == (("1" * 16,), ())
    assert second.begin_answer() == (), "this request has not called it"
    memory.remember("a", [RemoteMark(5, "1" * 16)])
    with pytest.raises(GuardError, match="after the answer has begun"):
        memory.remember("a", [RemoteMark(5, "3" * 16)])


def test_seals_are_passed_on_by_a_limited_number_of_services() -> None:
    memory = SealMemory(5, PassedSeals(()))
    memory.remember("a", [RemoteMark(5, "1" * 16 * (MAX_ID_PARTS - 1))])
    with pytest.raises(GuardError, match="at most 3"):
        memory.remember("a", [RemoteMark(5, "1" * 16 * MAX_ID_PARTS)])


def test_no_two_requests_of_a_lease_have_one_key() -> None:
    first, second = RequestKeys(sequencer_of(5)), RequestKeys(sequencer_of(5))
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: first.draw(), range(200)))
    drawn += [second.draw(), RequestKeys(sequencer_of(6)).draw()]
    assert len(set(drawn)) == 202
    assert all(re.fullmatch(r"[0-9a-f-]{50,80}", key) for key in drawn)
    assert sequencer_of(5).proof not in drawn[0]


# --- the request's sequencer ------------------------------------------------------------------------------------------
def test_a_sequencer_is_there_in_copies_of_the_context_alone() -> None:
    carried = CarriedSequencer(sequencer_of(5))
    with ThreadPoolExecutor(1) as pool:
        with carrying(carried):
            assert pool.submit(copy_context().run, sequencer).result() is carried
            assert not pool.submit(has_token).result()
        assert not has_token()


def test_a_carried_sequencer_shows_no_secret() -> None:
    carried = CarriedSequencer(sequencer_of(5))
    assert repr(carried) == "<CarriedSequencer lock='nightly-report' token=5>"
