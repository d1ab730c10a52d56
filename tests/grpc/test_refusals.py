"""A call that shows no good token reaches no handler, and its status says why, for clients of any language."""

import sys
from typing import Any

import grpc
import pytest

import fencelock
from fencelock._remote.carried import CarriedSequencer
from fencelock.errors import (
    ConfigError,
    LeaseReleasedError,
    MissingDependencyError,
    UnfencedWriteError,
    UnsupportedError,
    WrongLockError,
)
from fencelock.grpc.statuses import ErrorInfo, decode_details
from tests.grpc.callers import Caller
from tests.grpc.services import LOCK, Handlers, Service, path_of, served, served_async


def raw(service: Service, method: str, *metadata: tuple[str, str]) -> Any:
    """Call without fencelock's channel."""
    with grpc.insecure_channel(service.target) as channel:
        return channel.unary_unary(path_of(method))(b"body", metadata=metadata, timeout=30)


def refusal(service: Service, *metadata: tuple[str, str]) -> tuple[grpc.StatusCode, ErrorInfo]:
    with pytest.raises(grpc.RpcError) as caught:
        raw(service, "Put", *metadata)
    assert service.handlers.seen == []
    info = decode_details(caught.value.trailing_metadata())
    assert info is not None
    return caught.value.code(), info


def quoted(lease: fencelock.Lease) -> str:
    return f'"{lease.sequencer}"'


def test_a_call_without_a_token_reaches_no_handler(service: Service):
    code, info = refusal(service)
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TOKEN_REQUIRED")
    assert info.fields == {"lock": LOCK}


def test_a_token_that_is_not_understood_is_an_invalid_argument(service: Service, lease: fencelock.Lease):
    good = quoted(lease)
    for metadata in (
        (("fencing-token", good), ("fencing-token", good)),
        (("fencing-token", ""),),
        (("fencing-token", str(lease.sequencer)),),
        (("fencing-token", good[:-9] + '"'),),
        (("fencing-token", '"' + "x" * 3000 + '"'),),
        (("fencing-token", good), ("fencing-sealed", '"not an id"')),
    ):
        code, info = refusal(service, *metadata)
        assert (code, info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_TOKEN")


def test_the_token_of_another_lock_reaches_no_handler(service: Service, source: fencelock.Source):
    other = source.lock("another").acquire()
    assert other is not None
    code, info = refusal(service, ("fencing-token", quoted(other)))
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_LOCK")
    assert info.fields["lock"] == "another"


def test_a_client_of_another_lock_gets_the_guards_error(caller_of: Any, service: Service, source: fencelock.Source):
    other = source.lock("another").acquire()
    with pytest.raises(WrongLockError, match="'another'"):
        caller_of(other, service.target).call("Put")


def test_a_lease_that_is_over_sends_nothing(caller_of: Any, service: Service, lease: fencelock.Lease):
    caller = caller_of(lease, service.target)
    caller.call("Put", b"1")
    lease.release()
    with pytest.raises(LeaseReleasedError):
        caller.call("Put", b"2")
    assert len(service.handlers.seen) == 1


def test_an_answer_that_no_guard_admitted_is_an_error(caller: Caller):
    caller.call("Put", b"negative control: a guard has admitted this one")
    with pytest.raises(UnfencedWriteError, match=r"Unguarded: .*without a mark") as caught:
        caller.call("Unguarded")
    assert not caught.value.definite, "the handler has run"


def test_an_absence_that_no_guard_admitted_is_an_error(caller: Caller):
    """As a 404 over HTTP; other refusals are the handler's own."""
    with pytest.raises(UnfencedWriteError, match=r"NOT_FOUND: said without a guard: .*without a mark") as caught:
        caller.call("UnguardedRefusal", b"NOT_FOUND")
    assert not caught.value.definite, "the handler has run"
    for other in ("PERMISSION_DENIED", "FAILED_PRECONDITION", "UNIMPLEMENTED"):
        with pytest.raises(grpc.RpcError) as refused:
            caller.call("UnguardedRefusal", other.encode())
        assert refused.value.code().name == other


def test_a_stream_that_no_guard_admitted_gives_no_message(caller: Caller):
    got: list[bytes] = []
    with pytest.raises(UnfencedWriteError, match=r"UnguardedRows: .*without a mark"):
        caller.download_into(got, "UnguardedRows")
    assert got == []


@pytest.mark.parametrize("serve", [served, served_async])
def test_a_service_without_the_interceptor_gets_no_call(serve: Any, caller_of: Any, lease: fencelock.Lease, data: Any):
    handlers = Handlers(f"sqlite:///{data}")
    with serve(handlers, interceptors=()) as service:
        with pytest.raises(UnsupportedError, match="does not fence its calls"):
            caller_of(lease, service.target).call("Unguarded")
        assert handlers.seen == []
        raw(service, "Unguarded")
        assert handlers.seen, "negative control: the service answers"


def test_methods_may_be_exempt_from_tokens(data: Any):
    with served(Handlers(f"sqlite:///{data}"), required=lambda method: method == path_of("Put")) as service:
        assert raw(service, "Unguarded") == b"body"
        assert service.handlers.seen == [("Unguarded", False)]
        service.handlers.seen.clear()
        assert refusal(service)[1].reason == "TOKEN_REQUIRED"


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(fencelock.grpc.__dict__, "channel", raising=False)
    monkeypatch.setitem(sys.modules, "fencelock.grpc.clients.blocking", None)
    with pytest.raises(MissingDependencyError, match="needs grpcio and protobuf"):
        fencelock.grpc.channel  # noqa: B018 - the name is what is loaded.


def test_guards_may_depend_on_the_lock(caller_of: Any, source: fencelock.Source, data: Any):
    handlers = Handlers(f"sqlite:///{data}")
    asked: list[str] = []

    def guards_of(lock: str) -> list[fencelock.Guard]:
        asked.append(lock)
        return [handlers.guard]

    with served(handlers, [fencelock.grpc.FencingInterceptor(guards_of)]) as service:
        caller_of(source.lock(LOCK).acquire(), service.target).call("Put", b"1")
        with pytest.raises(WrongLockError, match="no resource of this service"):
            caller_of(source.lock("another").acquire(), service.target).call("Put", b"2")
    assert asked == [LOCK, "another"]


def test_what_is_no_guard_is_refused_at_the_start(data: Any):
    with pytest.raises(ConfigError, match="must be what"):
        fencelock.grpc.FencingInterceptor(["reports"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="must be a list"):
        fencelock.grpc.FencingInterceptor(fencelock.guard(f"sqlite:///{data}", resource="r", lock=LOCK))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must name the guards"):
        fencelock.grpc.FencingInterceptor([])
    with pytest.raises(ConfigError, match=r"fencelock\.aio"):
        fencelock.grpc.FencingInterceptor([fencelock.aio.guard(f"sqlite:///{data}", resource="r", lock=LOCK)])


def test_what_a_function_of_guards_returns_is_checked(lease: fencelock.Lease):
    interceptor = fencelock.grpc.FencingInterceptor(lambda _: ["reports"])  # type: ignore[list-item, return-value]
    with pytest.raises(ConfigError, match="must be what"):
        interceptor._guards_of(CarriedSequencer(lease.sequencer))


def test_a_sequencer_outside_of_a_call_is_an_error():
    with pytest.raises(ConfigError, match="no request is being answered"):
        fencelock.grpc.sequencer()
    with pytest.raises(ConfigError, match="no call is being answered"):
        fencelock.grpc.once(b"")


def test_no_log_and_no_error_shows_a_proof(caller: Caller, lease: fencelock.Lease, service: Service, caplog: Any):
    caplog.set_level("DEBUG")
    shown = []
    for method in ("Put", "Fail", "Refuse", "Unguarded"):
        try:
            caller.call(method, b"1")
        except Exception as error:
            shown += [repr(error), str(error), repr(error.__cause__)]
    service.handlers.seen.clear()
    for text in (str(lease.sequencer), quoted(lease)[:-2] + '"', quoted(lease) + "x"):
        with pytest.raises(grpc.RpcError) as caught:
            raw(service, "Put", ("fencing-token", text))
        shown += [repr(caught.value), repr(caught.value.trailing_metadata())]
    assert shown
    assert lease.sequencer.proof not in "".join((*shown, caplog.text, repr(caller.channel)))
