"""What a client is told of a call without an answer, and of a call that is sent again."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

import fencelock
from fencelock.errors import (
    AlreadyDoneError,
    ConfigError,
    GuardError,
    KeyReusedError,
    OutcomeUnknownError,
    SourceUnavailableError,
)
from fencelock.grpc.server import encoded_request
from fencelock_lab.proxy.proxy import Proxy
from tests.grpc.callers import Caller
from tests.grpc.services import Service, bodies
from tests.support.helpers import wait_until

NOBODY_THERE = "127.0.0.1:1"


@pytest.fixture
def proxy(service: Service) -> Iterator[Proxy]:
    with Proxy(service.port) as proxy:
        yield proxy


def lose_answer(caller: Caller, service: Service, proxy: Proxy, method: str) -> OutcomeUnknownError:
    """Cut the connection of a call whose write is committed."""
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(caller.call, method, b"1")
        wait_until(lambda: service.handlers.seen)
        proxy.cut()
        with pytest.raises(OutcomeUnknownError) as caught:
            call.result()
    service.handlers.may_end.set()
    return caught.value


def test_a_lost_answer_is_an_unknown_outcome(
    caller_of: Callable[..., Caller], lease: fencelock.Lease, service: Service, proxy: Proxy, data: Path
):
    caller = caller_of(lease, f"127.0.0.1:{proxy.port}")
    error = lose_answer(caller, service, proxy, "Held")
    assert not error.definite
    assert bodies(data) == ["1"]


def test_a_call_that_is_sent_again_is_done_once(
    caller_of: Callable[..., Caller], lease: fencelock.Lease, service: Service, proxy: Proxy, data: Path
):
    caller = caller_of(lease, f"127.0.0.1:{proxy.port}")
    key = lose_answer(caller, service, proxy, "Once").idempotency_key
    assert key is not None
    again = {"metadata": [("idempotency-key", key)]}

    def ask_again() -> bytes | None:
        try:
            return caller.call("Once", b"1", **again)  # type: ignore[no-any-return]
        except OutcomeUnknownError:  # gRPC sent it on the connection that was cut.
            return None

    with pytest.raises(AlreadyDoneError) as caught:
        wait_until(ask_again)
    assert (caught.value.result, caught.value.token) == ("stored 1", lease.token)
    with pytest.raises(KeyReusedError):
        caller.call("Once", b"another request", **again)
    assert caller.call("Once", b"2") == b"stored 2", "another call has another key"
    assert bodies(data) == ["1", "2"]


def test_a_deadline_is_an_unknown_outcome(caller: Caller, data: Path, service: Service):
    caller.seal()
    with pytest.raises(OutcomeUnknownError, match="DEADLINE_EXCEEDED"):
        caller.call("Held", b"1", timeout=0.2)
    service.handlers.may_end.set()


def test_a_call_that_was_never_sent_is_definite(caller_of: Callable[..., Caller], lease: fencelock.Lease):
    with pytest.raises(SourceUnavailableError, match="nothing was done"):
        caller_of(lease, NOBODY_THERE).call("Put", b"1")


def test_what_grpc_may_repeat_is_not_definite(
    caller_of: Callable[..., Caller], lease: fencelock.Lease, service: Service, proxy: Proxy
):
    options = [("grpc.service_config", "{}")]
    caller = caller_of(lease, f"127.0.0.1:{proxy.port}", options=options)
    caller.call("Put", b"1")
    proxy.refuse()
    proxy.cut()
    with pytest.raises(OutcomeUnknownError):
        caller.call("Put", b"2")


def test_the_failure_of_another_service_is_not_taken_for_this_ones(caller: Caller, data: Path):
    with pytest.raises(OutcomeUnknownError):
        caller.call("Refuse", b"relayed")
    assert bodies(data) == ["relayed"]


def test_a_handlers_own_status_passes(caller: Caller):
    with pytest.raises(grpc.RpcError) as caught:
        caller.call("Refuse", b"1")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    told = {key: value for key, value in caught.value.trailing_metadata()}  # noqa: C416 - pairs of two classes.
    assert told["reason"] == "own"
    assert told["fencing-mark"].startswith('"1";seal="'), "what was read before an error was read under the seal"


def test_an_answer_that_was_kept_needs_no_mark(caller: Caller):
    assert caller.call("Replay", b"as before") == b"as before"


def test_no_success_is_told_before_the_end_of_a_block(caller: Caller):
    with pytest.raises(GuardError, match="before its COMMIT"):
        caller.call("LeaveOpen", b"1")


def test_a_job_is_of_a_message_or_of_bytes():
    assert encoded_request(b"1") == b"1"
    assert encoded_request(StringValue(value="1")) == StringValue(value="1").SerializeToString()
    with pytest.raises(ConfigError, match="protobuf message or bytes"):
        encoded_request("1")


def test_a_broken_handler_is_an_unknown_outcome(caller: Caller):
    with pytest.raises(OutcomeUnknownError, match="UNKNOWN") as caught:
        caller.call("Fail", b"1")
    status: Any = caught.value.__cause__
    assert "fencing-mark" in dict(status.trailing_metadata()), "the client is told of the seal all the same"


def test_a_stream_that_was_believed_may_still_fail(caller: Caller):
    caller.call("Put", b"1")
    got: list[bytes] = []
    with pytest.raises(GuardError, match="after the answer has begun"):
        caller.download_into(got, "LateGuard")
    assert got == [b"1"]


def test_the_handler_does_not_see_the_token(caller: Caller, service: Service):
    caller.call("Put", b"1")
    ((_, metadata),) = service.handlers.seen
    keys = [pair[0] for pair in metadata]
    assert "idempotency-key" in keys
    assert "fencing-token" not in keys


class TestFutures:
    """gRPC's other ways to call: futures, `with_call` and cancelling."""

    @pytest.fixture
    def put(self, lease: fencelock.Lease, blocking_service: Service) -> Iterator[Any]:
        with fencelock.grpc.channel(lease, blocking_service.target) as channel:
            yield channel.unary_unary("/test.Reports/Put")

    def test_a_future_has_the_response(self, put: Any):
        future = put.future(b"1")
        called: list[Any] = []
        future.add_done_callback(called.append)
        assert future.result(30) == b"done"
        assert future.exception() is None
        assert future.traceback() is None
        wait_until(lambda: called == [future])
        assert isinstance(future, grpc.Future)

    def test_with_call_gives_the_marks(self, put: Any):
        response, call = put.with_call(b"1", timeout=30)
        assert response == b"done"
        assert call.code() is grpc.StatusCode.OK
        assert "fencing-mark" in dict(call.trailing_metadata())

    def test_a_future_has_the_guards_error(self, lease: fencelock.Lease, blocking_service: Service):
        with fencelock.grpc.channel(lease, blocking_service.target) as channel:
            future = channel.unary_unary("/test.Reports/Fail").future(b"1")
            assert isinstance(future.exception(30), OutcomeUnknownError)
            assert future.traceback() is not None

    def test_a_cancelled_future_is_cancelled(self, lease: fencelock.Lease, blocking_service: Service):
        with fencelock.grpc.channel(lease, blocking_service.target) as channel:
            future = channel.unary_unary("/test.Reports/Held").future(b"1")
            wait_until(lambda: blocking_service.handlers.seen)
            assert future.cancel()
            with pytest.raises(grpc.FutureCancelledError):
                future.result(30)
            with pytest.raises(grpc.FutureCancelledError):
                future.exception(30)
            blocking_service.handlers.may_end.set()

    def test_a_caller_may_leave_a_stream(self, put: Any, lease: fencelock.Lease, blocking_service: Service):
        for body in (b"1", b"2"):
            put(body, timeout=30)
        with fencelock.grpc.channel(lease, blocking_service.target) as channel:
            rows = channel.unary_stream("/test.Reports/Rows")(b"", timeout=30)
            assert next(rows) == b"1"
            rows.cancel()
            assert put(b"3", timeout=30) == b"done", "the block of the stream has ended"
