"""The same answers in every framework, from the first request of a tenure to the refusal of a stale one."""

import json

import pytest

from fencelock import AlreadyDoneError, SourceUnavailableError, StaleTokenError, UnfencedWriteError
from tests.http.frameworks import Report
from tests.http.wire import Service, fields_of
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, raised_for, sequencer, value_in


def test_a_holder_reads_and_writes_and_is_told_its_mark_each_time(service: Service, report: Report) -> None:
    lease = HandmadeLease(5)
    read = service.call("GET", "/report", lease)
    assert (read.status, read.body) == (200, b"0")
    assert [mark.token for mark in read.marks] == [5]
    written = service.call("PUT", "/report/7", lease, read.seals)
    assert (written.status, written.marks) == (200, read.marks)
    assert value_in(report.path) == 7
    assert report.guard.mark().token == 5


def test_an_answer_of_any_status_tells_the_mark_and_is_not_cached(service: Service) -> None:
    for path in ("/report", "/gone"):
        reply = service.call("GET", path, HandmadeLease(5))
        assert len(reply.marks) == 1
        assert reply.field("cache-control") == "no-store"


def test_a_stale_holder_gets_the_error_that_its_own_guard_would_raise(service: Service, report: Report) -> None:
    service.call("GET", "/report", HandmadeLease(6))
    reply = service.call("PUT", "/report/7", HandmadeLease(5))
    assert (reply.status, reply.kind, reply.field("cache-control")) == (412, "stale-token", "no-store")
    error = reply.problem
    assert isinstance(error, StaleTokenError)
    assert (error.token, error.mark, error.resource) == (5, 6, RESOURCE)
    told = json.loads(reply.body)
    assert (told["lock"], told["token"], told["mark"]) == (LOCK, "5", "6")
    assert value_in(report.path) == 0


def test_a_write_without_a_token_is_refused_before_its_handler(service: Service, report: Report) -> None:
    reply = service.call("PUT", "/report/7")
    assert (reply.status, reply.kind) == (428, "token-required")
    assert isinstance(reply.problem, UnfencedWriteError)
    assert report.seen == []


def test_a_read_without_a_token_reaches_its_handler_which_may_want_one(service: Service, report: Report) -> None:
    assert service.call("GET", "/public").body == b"0"
    assert service.call("GET", "/public", HandmadeLease(5)).body == b"fenced"
    assert service.call("GET", "/report").kind == "token-required"
    assert len(report.seen) == 3


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_token_that_is_there_twice_is_refused(service: Service, report: Report, method: str) -> None:
    reply = service.send(method, "/report/7", [*fields_of(HandmadeLease(5)), *fields_of(HandmadeLease(6))])
    assert (reply.status, reply.kind) == (400, "malformed-token")
    assert report.seen == []


def test_a_key_that_is_there_twice_is_refused(service: Service, report: Report) -> None:
    """G14: one that has a comma itself is written in quotation marks."""
    own = fields_of(HandmadeLease(5))
    for keys in (["a", "b"], ["a,b"], ['"a"', '"b"']):
        reply = service.send("POST", "/report/7", [*own, *(("Idempotency-Key", key) for key in keys)])
        assert (reply.status, reply.kind) == (400, "malformed-key")
    assert value_in(report.path) == 0
    assert service.send("POST", "/report/7", [*own, ("Idempotency-Key", '"a,b"')]).status == 201


def test_another_locks_holder_is_refused(service: Service, report: Report) -> None:
    reply = service.call("PUT", "/report/7", sequencer(5, lock="another"))
    assert (reply.status, reply.kind) == (403, "wrong-lock")
    assert report.seen == []


def test_no_handler_sees_the_token(service: Service, report: Report) -> None:
    service.call("GET", "/report", HandmadeLease(5), ["0" * 16])
    service.call("GET", "/public", HandmadeLease(5))
    assert all("fencing-token" not in fields and "host" in fields for fields in report.seen)
    assert len(report.seen) == 2


def test_a_repeated_request_is_answered_with_what_the_first_one_kept(service: Service, report: Report) -> None:
    """G14, across the wire."""
    lease = HandmadeLease(5)
    first = service.call("POST", "/report/7", lease, key="k-1")
    assert (first.status, first.body, first.field("fencing-replayed")) == (201, b'{"added": 7}', None)
    again = service.call("POST", "/report/7", lease, first.seals, key="k-1")
    assert (again.status, again.body) == (200, b'{"added": 7}')
    assert (again.field("fencing-replayed"), again.field("content-type")) == ("?1", "application/json")
    assert service.call("POST", "/report/8", lease, first.seals, key="k-1").kind == "key-reused"
    assert service.call("POST", "/report/8", lease, first.seals).kind == "malformed-key"
    assert value_in(report.path) == 7


def test_an_unavailable_resource_may_be_tried_again(service: Service, report: Report) -> None:
    report.raised = raised_for(SourceUnavailableError("the database at db.internal is not there"), HandmadeLease(5))
    reply = service.call("PUT", "/raise", HandmadeLease(5))
    assert (reply.status, reply.kind, reply.field("retry-after")) == (503, "unavailable", "1")
    assert isinstance(reply.problem, SourceUnavailableError)
    assert b"db.internal" not in reply.body


def test_the_refusals_of_several_tasks_are_answered_as_the_worst_of_them(service: Service, report: Report) -> None:
    """A TaskGroup raises them as one group, also if there is one."""
    stale, gone = (
        raised_for(error, HandmadeLease(5))
        for error in (StaleTokenError("no", token=5, mark=6, resource=RESOURCE), SourceUnavailableError("not there"))
    )
    for errors, kind in (([stale], "stale-token"), ([stale, ExceptionGroup("inner", [gone])], "unavailable")):
        report.raised = ExceptionGroup("tasks", errors)
        assert service.call("PUT", "/raise", HandmadeLease(5)).kind == kind
    report.raised = ExceptionGroup("tasks", [stale, ZeroDivisionError("the handler's own")])
    reply = service.call("PUT", "/raise", HandmadeLease(5))
    assert reply.status >= 500
    assert reply.problem is None


def test_an_error_of_the_handler_that_is_not_about_fencing_is_the_frameworks(service: Service) -> None:
    reply = service.call("PUT", "/raise", HandmadeLease(5))
    assert reply.status >= 500
    assert reply.problem is None


def test_a_guards_error_in_a_request_without_a_token_is_the_frameworks(service: Service, report: Report) -> None:
    """The service has met it as a client itself: the caller must not take it for its own."""
    for error in (AlreadyDoneError("done", result="{}", token=1), SourceUnavailableError("not there")):
        report.raised = error
        reply = service.call("GET", "/raise")
        assert reply.status >= 500
        assert reply.problem is None


def test_an_error_of_a_lease_of_the_handlers_own_is_the_frameworks(service: Service, report: Report) -> None:
    """A job that the handler has found done, as a holder itself, says nothing about the request."""
    own = HandmadeLease(6)
    with report.guard.transaction(own, once="daily"):
        pass
    with pytest.raises(AlreadyDoneError) as caught, report.guard.transaction(own, once="daily"):
        pass
    report.raised = caught.value
    reply = service.call("PUT", "/raise", HandmadeLease(7))
    assert reply.status >= 500
    assert reply.problem is None


def test_an_error_that_no_guard_has_raised_is_the_frameworks(service: Service, report: Report) -> None:
    """The handler's own lock could not be acquired: what its guard has committed before is not undone by that."""
    report.raised = SourceUnavailableError("the locks' database is not there")
    reply = service.call("PUT", "/raise", HandmadeLease(5))
    assert reply.status >= 500
    assert reply.problem is None
    assert reply.field("retry-after") is None


def test_a_write_is_not_acknowledged_before_its_commit(service: Service, report: Report) -> None:
    reply = service.call("PUT", "/uncommitted", HandmadeLease(5))
    report.uncommitted.__exit__(None, None, None)
    assert (reply.status, reply.kind) == (409, "guard-refused")
    assert b"before its COMMIT" in reply.body


def test_the_seal_route_seals_before_anything_is_read(service: Service, report: Report) -> None:
    """G2, across the wire."""
    reply = service.call("POST", "/.well-known/fencing/seal", HandmadeLease(5))
    assert (reply.status, reply.body, [mark.token for mark in reply.marks]) == (204, b"", [5])
    assert report.guard.mark().token == 5
    assert report.seen == []
    for refused, kind in ((HandmadeLease(4), "stale-token"), (None, "token-required")):
        assert service.call("POST", "/.well-known/fencing/seal", refused).kind == kind
