"""What a client of a lease makes of each answer, and of each answer that does not arrive."""

import gzip
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import aiohttp
import pytest

import fencelock
from fencelock import (
    AlreadyDoneError,
    ConfigError,
    EffectInDoubtError,
    FencelockError,
    ForgedSequencerError,
    GuardError,
    KeyReusedError,
    OutcomeUnknownError,
    SealLostError,
    SourceUnavailableError,
    StaleTokenError,
    TokenCollisionError,
    UnfencedWriteError,
    UnsupportedError,
    WrongLockError,
)
from fencelock._api.credentials import is_asked_by
from fencelock.http.methods_and_paths import SEAL_PATH
from fencelock.http.problems import MAX_PROBLEM_BYTES
from tests.http.clients.callers import Caller
from tests.http.clients.conftest import Opens
from tests.http.clients.scripted import LOST, OWN, SEAL, Answer, ScriptedService, problem
from tests.support.helpers import wait_until

FAULTS = [
    (problem("stale-token", 412, token=OWN, mark="43", resource="reports"), StaleTokenError),
    (problem("seal-lost", 409), SealLostError),
    (problem("token-collision", 409), TokenCollisionError),
    (problem("wrong-lock", 403), WrongLockError),
    (problem("forged-sequencer", 403), ForgedSequencerError),
    (problem("key-reused", 422, token="42", holder="host"), KeyReusedError),
    (problem("effect-in-doubt", 409, token="42", holder="host", began_at="now"), EffectInDoubtError),
    (problem("guard-refused", 409), GuardError),
    (problem("token-required", 428), UnfencedWriteError),
    (problem("malformed-token", 400), ConfigError),
    (problem("unavailable", 503), SourceUnavailableError),
    (problem("outcome-unknown", 504), OutcomeUnknownError),
]


@pytest.mark.parametrize(("fault", "error"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_raised_as_the_error_of_a_guard_in_this_process(
    caller: Caller, service: ScriptedService, lease: fencelock.Lease, fault: Answer, error: type[FencelockError]
) -> None:
    service.answers += [fault, fault]
    for stream in (False, True):
        with pytest.raises(error, match="why") as caught:
            caller.call("PUT", "/report", stream=stream)
        assert type(caught.value) is error
        assert not is_asked_by(caught.value, lease), "a service answers no request of its own with it"
        assert caught.value.definite is (error is not OutcomeUnknownError)
        if isinstance(caught.value, OutcomeUnknownError):
            assert caught.value.idempotency_key == service.received[-1].key


def test_a_stale_token_is_told_with_its_numbers(
    caller: Caller, service: ScriptedService, lease: fencelock.Lease
) -> None:
    service.answers.append(problem("stale-token", 412, token=OWN, mark=str(2**62), resource="reports"))
    with pytest.raises(StaleTokenError) as caught:
        caller.call("GET", "/report")
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (lease.token, 2**62, "reports")


@pytest.mark.parametrize(
    "fault",
    [problem("stale-token", 412, token="77777", mark="77778", resource="r"), problem("seal-lost", 409, token="77777")],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_fault_of_another_request_says_nothing_about_this_one(
    caller: Caller, service: ScriptedService, fault: Answer, method: str
) -> None:
    service.answers.append(fault)
    with pytest.raises(OutcomeUnknownError, match="of token 77777: it is another request's") as caught:
        caller.call(method, "/report")
    assert not caught.value.definite
    assert caught.value.idempotency_key == service.received[0].key


def test_a_fault_breaks_no_line_of_a_log_and_controls_no_terminal(caller: Caller, service: ScriptedService) -> None:
    service.answers.append(problem("guard-refused", 409, detail="n\u00e4chtlich \ud800\r\n\x1b[31m\u202egone"))
    with pytest.raises(GuardError) as caught:
        caller.call("PUT", "/report")
    assert str(caught.value) == "n\u00e4chtlich \ufffd\ufffd\ufffd\ufffd[31m\ufffdgone"


def test_the_seals_of_a_fault_are_remembered(caller: Caller, service: ScriptedService) -> None:
    fault = replace(problem("key-reused", 422, token="1", holder="host"), is_marked=True)
    service.answers.append(fault)
    with pytest.raises(KeyReusedError):
        caller.call("PUT", "/report")
    caller.call("PUT", "/report")
    assert service.received[1].fields["fencing-sealed"] == f'"{SEAL}"'


def test_a_compressed_fault_is_understood(caller: Caller, service: ScriptedService) -> None:
    fault = problem("seal-lost", 409)
    body = gzip.compress(fault.body)
    service.answers.append(replace(fault, body=body, fields=fault.fields | {"content-encoding": "gzip"}))
    with pytest.raises(SealLostError):
        caller.call("PUT", "/report")


@pytest.mark.parametrize(
    "other",
    [
        replace(problem("stale-token", 412), body=b'{"type": "https://example.com/stale", "detail": "theirs"}'),
        replace(problem("stale-token", 412), body=b"not JSON"),
        replace(problem("stale-token", 412), body=b'["a list"]'),
        problem("of-a-later-version", 409),
        problem("stale-token", 412, token="many", mark="2", resource="reports"),
        replace(problem("seal-lost", 409), body=b" " * (MAX_PROBLEM_BYTES + 1)),
        Answer(401, is_marked=False),
        Answer(422, is_marked=False),
    ],
    ids=["another type", "no JSON", "a list", "later kind", "no numbers", "too long", "401", "422"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_services_own_is_returned_whole(
    caller: Caller, service: ScriptedService, other: Answer, stream: bool
) -> None:
    service.answers.append(other)
    reply = caller.call("PUT", "/report", stream=stream)
    assert (reply.status, reply.body) == (other.status, other.body)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
@pytest.mark.parametrize("status", [200, 204, 404, 410])
def test_an_answer_without_a_mark_is_no_fenced_one(
    caller: Caller, service: ScriptedService, method: str, status: int
) -> None:
    service.answers.append(Answer(status, is_marked=False, body=b""))
    with pytest.raises(UnfencedWriteError, match="without a mark") as caught:
        caller.call(method, "/report")
    first = str(caught.value).partition("\n")[0]
    assert first.startswith(f"{method} ")
    assert f"/report was answered {status}: " in first
    assert ("Check its path" in first) is (status in {404, 410})
    assert caught.value.definite is (method != "PUT")


@pytest.mark.parametrize("mark", [f'"999999";seal="{SEAL}"', f'"1";seal="{SEAL}", "999999";seal="{"0" * 16}"'])
def test_an_answer_with_the_mark_of_another_token_is_no_fenced_one(
    caller: Caller, service: ScriptedService, mark: str
) -> None:
    service.answers.append(Answer(fields={"fencing-mark": mark}))
    with pytest.raises(UnfencedWriteError, match="to a request with token"):
        caller.call("GET", "/report")


@pytest.mark.parametrize("answer", [Answer(409), problem("stale-token", 412, token="1", mark="2", resource="reports")])
def test_a_refusal_with_the_mark_of_another_token_undoes_no_write(
    caller: Caller, service: ScriptedService, answer: Answer
) -> None:
    mark = {"fencing-mark": f'"999999";seal="{SEAL}"'}
    service.answers.append(replace(answer, fields={**answer.fields, **mark}))
    with pytest.raises(UnfencedWriteError, match="to a request with token") as caught:
        caller.call("PUT", "/report")
    assert not caught.value.definite


@pytest.mark.parametrize("mark", ["1", '"1"', '"01";seal="9f3ab2c1d4e5f607"', '"1";seal="9f3ab2c1d4e5f607";'])
def test_what_is_not_a_mark_is_none(caller: Caller, service: ScriptedService, mark: str) -> None:
    service.answers.append(Answer(fields={"fencing-mark": mark}))
    with pytest.raises(UnfencedWriteError, match="without a mark"):
        caller.call("GET", "/report")


def test_a_cached_answer_that_is_confirmed_needs_a_mark_too(caller: Caller, service: ScriptedService) -> None:
    service.answers += [Answer(304, body=b"", is_marked=False), Answer(304, body=b"")]
    with pytest.raises(UnfencedWriteError):
        caller.call("GET", "/report")
    assert caller.call("GET", "/report").status == 304


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_write_that_is_answered_by_a_page_to_see_needs_a_mark(
    caller: Caller, service: ScriptedService, status: int
) -> None:
    """An unfenced route that redirects to a fenced page would else look fenced."""
    service.answers.append(Answer(status, {"location": "/reports/1"}, is_marked=False))
    with pytest.raises(UnfencedWriteError):
        caller.call("POST", "/reports", follow=True)
    assert len(service.received) == 1


def test_an_answer_that_is_played_back_needs_no_mark(caller: Caller, service: ScriptedService) -> None:
    service.answers += [Answer(fields={"fencing-replayed": "?1"}, is_marked=False)] * 2
    assert caller.call("PUT", "/report").status == 200
    with pytest.raises(UnfencedWriteError):
        caller.call("GET", "/report")  # Nothing without a key is played back.
    service.answers.append(Answer(fields={"fencing-replayed": "?1", "fencing-mark": f'"999999";seal="{SEAL}"'}))
    with pytest.raises(UnfencedWriteError, match="to a request with token"):
        caller.call("PUT", "/report")


def test_the_seals_of_the_services_own_refusal_are_remembered(caller: Caller, service: ScriptedService) -> None:
    service.answers.append(Answer(409))
    assert caller.call("PUT", "/report").status == 409
    caller.call("PUT", "/report")
    assert service.received[1].fields["fencing-sealed"] == f'"{SEAL}"'


@pytest.mark.parametrize("status", [404, 405, 303, 401])
def test_a_service_without_a_seal_route_is_not_sealed(caller: Caller, service: ScriptedService, status: int) -> None:
    service.answers.append(Answer(status, is_marked=False))
    with pytest.raises(UnsupportedError, match=r"no seal route.*guards=\[guard\]"):
        caller.call("POST", SEAL_PATH)


@pytest.mark.parametrize("status", [412, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_a_problem_without_an_end_is_not_read_to_its_end(
    caller: Caller, service: ScriptedService, status: int, stream: bool
) -> None:
    endless = replace(problem("stale-token", status), body=b" " * (MAX_PROBLEM_BYTES + 1), is_endless=True)
    service.answers.append(endless)
    with pytest.raises(OutcomeUnknownError, match="a problem of more than 65536 bytes") as caught:
        caller.call("PUT", "/report", stream=stream)
    assert caught.value.idempotency_key == service.received[0].key


BOMB = gzip.compress(bytes(40_000_000), 9)
"""As short as a problem, as long as it is not decoded."""


@pytest.mark.parametrize("stream", [False, True])
def test_a_compressed_problem_is_decoded_as_far_as_a_problem_is_long(
    caller: Caller, service: ScriptedService, stream: bool
) -> None:
    service.answers.append(compressed(BOMB, "gzip"))
    with few_bytes(), pytest.raises(OutcomeUnknownError, match="a problem of more than 65536 bytes"):
        caller.call("PUT", "/report", stream=stream)


def test_a_problem_that_is_compressed_twice_does_not_fill_the_memory(caller: Caller, service: ScriptedService) -> None:
    """Not every library decodes it."""
    service.answers.append(compressed(gzip.compress(BOMB), "gzip, gzip"))
    with few_bytes(), suppress(OutcomeUnknownError):
        caller.call("PUT", "/report")


def compressed(body: bytes, coding: str) -> Answer:
    fault = problem("stale-token", 412)
    return replace(fault, body=body, fields=fault.fields | {"content-encoding": coding})


@contextmanager
def few_bytes() -> Iterator[None]:
    """A block that takes no memory to speak of."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(gzip.decompress(BOMB)) // 4


def test_the_refusal_of_a_head_has_no_body_and_is_an_answer(caller: Caller, service: ScriptedService) -> None:
    service.answers += [replace(problem("stale-token", 412), body=b""), replace(problem("unavailable", 503), body=b"")]
    assert caller.call("HEAD", "/report").status == 412
    with pytest.raises(OutcomeUnknownError):
        caller.call("HEAD", "/report")


PAGE = Answer(502, {"content-type": "text/html"}, b"<html>Bad Gateway</html>", is_marked=False)
DOUBTFUL = {
    "the answer is lost": LOST,
    "half of the body": Answer(cut_bytes=5),
    "half of a fault": replace(problem("seal-lost", 409), cut_bytes=5),
    "a proxy's page": PAGE,
    "a proxy's problem": replace(PAGE, fields={"content-type": "application/problem+json"}, body=b"{}"),
    "an answer of the application": Answer(500),
    "no HTTP": Answer(7),
}


@pytest.mark.parametrize("answer", DOUBTFUL.values(), ids=DOUBTFUL)
def test_what_may_have_taken_effect_is_an_unknown_outcome_with_the_requests_key(
    caller: Caller, service: ScriptedService, answer: Answer
) -> None:
    service.answers.append(answer)
    with pytest.raises(OutcomeUnknownError) as caught:
        caller.call("PUT", "/report", json={"a": 1})
    error = caught.value
    assert not error.definite
    assert error.idempotency_key == service.received[0].key
    assert error.idempotency_key is not None
    caller.call("PUT", "/report", json={"a": 1}, headers={"Idempotency-Key": error.idempotency_key})
    first, again = service.received
    assert (first.key, first.body) == (again.key, again.body)


def test_a_kept_connection_that_ends_does_not_repeat_the_request(caller: Caller, service: ScriptedService) -> None:
    service.answers.extend([Answer(keeps_open=True), LOST])
    caller.call("PUT", "/report", json={"a": 1})
    with pytest.raises(OutcomeUnknownError):
        caller.call("PUT", "/report", json={"a": 2})
    assert len(service.received) == 2


def test_an_answer_that_takes_too_long_is_an_unknown_outcome(caller: Caller, service: ScriptedService) -> None:
    ended = threading.Event()
    service.answers.append(Answer(after=ended))
    try:
        with pytest.raises(OutcomeUnknownError) as caught:
            caller.call("PUT", "/report", read_timeout=0.05)
    finally:
        ended.set()
    wait_until(lambda: service.received)
    assert caught.value.idempotency_key == service.received[0].key


@pytest.mark.asyncio
async def test_a_call_of_aiohttp_that_takes_too_long_in_all_is_an_unknown_outcome(
    lease: fencelock.Lease, service: ScriptedService
) -> None:
    ended = threading.Event()
    service.answers.append(Answer(after=ended))
    async with fencelock.http.client(lease, aiohttp.ClientSession(f"{service.url}/")) as session:
        try:
            with pytest.raises(OutcomeUnknownError) as caught:
                await session.put("report", timeout=aiohttp.ClientTimeout(total=0.05))
        finally:
            ended.set()
    assert caught.value.idempotency_key is not None


@pytest.mark.asyncio
async def test_no_error_of_a_call_that_takes_too_long_shows_a_password(lease: fencelock.Lease) -> None:
    async def late(*_: object) -> aiohttp.ClientResponse:
        raise TimeoutError

    async with fencelock.http.client(lease, aiohttp.ClientSession("https://reports.example/")) as session:
        with pytest.raises(OutcomeUnknownError, match=r"^PUT https://reports\.example/x@y has lost its answer"):
            await session.put("https://jo:hidden@reports.example/x@y?q=a", middlewares=[late])


def test_a_connection_that_is_never_made_is_definite(opens: Opens, lease: fencelock.Lease) -> None:
    with ScriptedService() as closed:
        pass
    with pytest.raises(SourceUnavailableError, match="no connection was made") as caught:
        opens(lease, closed.url).call("PUT", "/report")
    assert caught.value.definite


def test_a_connection_that_fails_after_a_write_was_redirected_is_not_definite(
    caller: Caller, service: ScriptedService
) -> None:
    service.answers += [Answer(303, {"location": "/reports/1"}), LOST]
    with pytest.raises(OutcomeUnknownError) as caught:
        caller.call("POST", "/reports", follow=True)
    assert caught.value.idempotency_key == service.received[0].key


def test_a_fault_without_the_classes_of_this_version_is_no_success(caller: Caller, service: ScriptedService) -> None:
    service.answers.append(problem("of-a-later-version", 503))
    with pytest.raises(OutcomeUnknownError):
        caller.call("PUT", "/report")


def test_a_result_that_was_recorded_is_not_raised_from_a_fault(caller: Caller, service: ScriptedService) -> None:
    service.answers.append(problem("already-done", 409, result="kept", token="7"))
    with pytest.raises(AlreadyDoneError) as caught:
        caller.call("PUT", "/report")
    assert (caught.value.result, caught.value.token) == ("kept", 7)
