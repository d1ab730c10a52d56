"""The client remembers seals, since a service has many processes and forgets: G9 and G2 across gRPC."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import fencelock
from fencelock.errors import GuardError, SealLostError, SourceUnavailableError, StaleTokenError
from fencelock.grpc import sequencer
from fencelock.grpc.method_and_metadata import SEAL_METHOD
from fencelock.grpc.statuses import decode_details
from tests.grpc.callers import Caller
from tests.grpc.services import LOCK, RESOURCE, SERVERS, Handlers, Service, bodies, path_of, served, two_holders
from tests.support.helpers import DEADLINE_S, wait_until


def put(target: str, holder: fencelock.Sequencer, body: bytes, *told: tuple[str, str]) -> Any:
    """Write as this holder, by a client that repeats what it was told, or nothing."""
    with grpc.insecure_channel(target) as channel:
        metadata = [("fencing-token", f'"{holder}"'), *told]
        return channel.unary_unary(path_of("Put"))(body, metadata=metadata, timeout=DEADLINE_S)


def read(target: str, holder: fencelock.Sequencer) -> tuple[str, list[bytes]]:
    """Read as this holder; return the mark that the service told, and the rows."""
    with grpc.insecure_channel(target) as channel:
        token = ("fencing-token", f'"{holder}"')
        call = channel.unary_stream(path_of("Rows"))(b"", metadata=[token], timeout=DEADLINE_S)
        rows = list(call)
        return dict(call.initial_metadata())["fencing-mark"], rows


def restore(data: Path, backup: Path) -> None:
    """Bring the resource back to an older state."""
    shutil.copy(backup, data)
    for side in data.parent.glob(f"{data.name}-*"):
        side.unlink()


def lost_seal(source: fencelock.Source, data: Path, server: str) -> tuple[fencelock.Sequencer, str]:
    """Have holder B seal and read, then lose the seal, and have the former holder A write; return B, and its mark.

    Each call reaches another server, which remembers nothing.
    """
    url, backup = f"sqlite:///{data}", data.with_suffix(".backup")
    old, new = two_holders(source)
    with SERVERS[server](url) as service:
        put(service.target, old, b"A's first")
    shutil.copy(data, backup)
    with SERVERS[server](url) as service:
        mark, rows = read(service.target, new)
    assert rows == [b"A's first"]
    restore(data, backup)
    with SERVERS[server](url) as service:
        put(service.target, old, b"A's second")
    return new, mark


@pytest.mark.parametrize("server", ["server", "async-server"])
def test_a_service_that_forgot_a_seal_does_not_make_it_again(source: fencelock.Source, data: Path, server: str):
    new, mark = lost_seal(source, data, server)
    assert mark.startswith(f'"{new.token}";seal=')
    with SERVERS[server](f"sqlite:///{data}") as service:
        with pytest.raises(grpc.RpcError) as caught:
            put(service.target, new, b"B's", ("fencing-sealed", mark.partition("seal=")[2]))
        info = decode_details(caught.value.trailing_metadata())
        assert info is not None
        assert (caught.value.code(), info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SEAL_LOST")
    assert bodies(data) == ["A's first", "A's second"]


def test_a_client_that_repeats_no_seal_overwrites_what_it_has_not_read(source: fencelock.Source, data: Path):
    """The negative control: what the client's memory prevents."""
    new, _ = lost_seal(source, data, "server")
    with SERVERS["server"](f"sqlite:///{data}") as service:
        assert put(service.target, new, b"B's") == b"done"


def test_the_channel_repeats_what_it_was_told(
    caller_of: Callable[..., Caller], lease: fencelock.Lease, data: Path, service: Service
):
    backup = data.with_suffix(".backup")
    shutil.copy(data, backup)
    caller = caller_of(lease, service.target)
    assert caller.download("Rows") == []
    restore(data, backup)
    with pytest.raises(SealLostError):
        caller.call("Put", b"B's")
    with pytest.raises(SealLostError):
        caller_of(lease, service.target).upload("PutAll", b"B's, over another channel of the lease")
    assert bodies(data) == []


class Front(Handlers):
    """A service that reads and writes another one's reports, for the holder who has called it."""

    def __init__(self, url: str, behind: str) -> None:
        super().__init__(url)
        self._behind = behind

    def put(self, request: bytes, _context: Any) -> bytes:
        with fencelock.grpc.channel(sequencer(), self._behind) as channel:
            done: bytes = channel.unary_unary(path_of("Put"))(request, timeout=DEADLINE_S)
            return done

    def rows(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        with fencelock.grpc.channel(sequencer(), self._behind) as channel:
            yield from list(channel.unary_stream(path_of("Rows"))(b"", timeout=DEADLINE_S))


def test_a_seal_that_a_service_behind_has_lost_is_not_made_again(source: fencelock.Source, data: Path, tmp_path: Path):
    old, new = two_holders(source)
    backup = data.with_suffix(".backup")
    url, front_url = f"sqlite:///{data}", f"sqlite:///{tmp_path / 'front.db'}"
    with served(Handlers(url)) as behind, served(Front(front_url, behind.target)) as front:
        put(behind.target, old, b"A's first")
        shutil.copy(data, backup)
        mark, rows = read(front.target, new)
        assert rows == [b"A's first"]
        restore(data, backup)
        put(behind.target, old, b"A's second")
        with pytest.raises(grpc.RpcError):
            put(front.target, new, b"B's", ("fencing-sealed", mark.partition("seal=")[2]))
    assert bodies(data) == ["A's first", "A's second"]


def test_the_first_calls_make_one_seal(lease: fencelock.Lease, data: Path, monkeypatch: pytest.MonkeyPatch):
    handlers = Handlers(f"sqlite:///{data}")
    interceptor = fencelock.grpc.FencingInterceptor([handlers.guard])
    methods = []
    intercept = interceptor.intercept_service

    def counted(continuation: Any, details: Any) -> Any:
        methods.append(details.method)
        return intercept(continuation, details)

    monkeypatch.setattr(interceptor, "intercept_service", counted)
    with served(handlers, [interceptor]) as service, fencelock.grpc.channel(lease, service.target) as channel:
        put = channel.unary_unary(path_of("Put"))
        threads = [threading.Thread(target=put, args=(b"x",), kwargs={"timeout": DEADLINE_S}) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert methods[0] == SEAL_METHOD
    assert methods.count(SEAL_METHOD) == 1
    assert methods.count(path_of("Put")) == len(threads)


@pytest.mark.parametrize("how", ["call", "seal"])
def test_a_second_channel_waits_for_the_seal_of_the_first(
    caller_of: Callable[..., Caller], lease: fencelock.Lease, data: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    handlers = Handlers(f"sqlite:///{data}")
    sealing, may_seal = threading.Event(), threading.Event()
    seals: list[str] = []
    seal = handlers.guard.seal

    def held(holder: Any) -> None:
        seals.append("seal")
        sealing.set()
        assert may_seal.wait(DEADLINE_S)
        seal(holder)

    monkeypatch.setattr(handlers.guard, "seal", held)
    with served(handlers) as service:
        first, second = (caller_of(lease, service.target) for _ in range(2))
        waiting = threading.Thread(target=first.seal if how == "seal" else lambda: first.call("Put", b"1"))
        waiting.start()
        assert sealing.wait(DEADLINE_S)
        with pytest.raises(SourceUnavailableError, match="first seal"):
            second.call("Put", b"2", timeout=0.01)
        may_seal.set()
        assert second.call("Put", b"2") == b"done"
        waiting.join()
    assert seals == ["seal"]


def test_a_service_is_not_sealed_after_another_was_read(
    caller_of: Callable[..., Caller], lease: fencelock.Lease, service: Service, tmp_path: Path, data: Path
):
    shutil.copy(data, tmp_path / "second.db")
    with served(Handlers(f"sqlite:///{tmp_path / 'second.db'}")) as second:
        caller_of(lease, service.target).download("Rows")
        with pytest.raises(GuardError, match=r"fencelock\.grpc\.seal"):
            caller_of(lease, second.target).call("Put", b"1")
        assert second.handlers.seen == []
        assert caller_of(lease, second.target, independent=True).call("Put", b"1") == b"done"


def test_g2_an_absence_that_was_read_is_a_read_too(
    caller_of: Callable[..., Caller], lease: fencelock.Lease, service: Service, tmp_path: Path, data: Path
):
    shutil.copy(data, tmp_path / "second.db")
    with served(Handlers(f"sqlite:///{tmp_path / 'second.db'}")) as second:
        with pytest.raises(grpc.RpcError):
            caller_of(lease, service.target).call("Refuse", b"1")
        with pytest.raises(GuardError, match=r"fencelock\.grpc\.seal"):
            caller_of(lease, second.target).call("Put", b"1")
        assert second.handlers.seen == []


def test_services_are_sealed_before_the_first_is_read(
    caller_of: Callable[..., Caller], lease: fencelock.Lease, service: Service, tmp_path: Path, data: Path
):
    shutil.copy(data, tmp_path / "second.db")
    with served(Handlers(f"sqlite:///{tmp_path / 'second.db'}")) as second:
        callers = [caller_of(lease, one.target) for one in (service, second)]
        for caller in callers:
            caller.seal()
        for caller in callers:
            caller.download("Rows")
            caller.call("Put", b"1")


def test_a_seal_is_refused_for_a_stale_token(caller: Caller, source: fencelock.Source, data: Path):
    source.break_lock(LOCK, reason="the holder is frozen")
    newer = source.lock(LOCK).acquire()
    assert newer is not None
    fencelock.guard(f"sqlite:///{data}", resource=RESOURCE, lock=LOCK).seal(newer)
    with pytest.raises(StaleTokenError):
        caller.seal()


def test_a_resource_that_cannot_be_reached_is_definite(caller: Caller, data: Path):
    data.unlink()
    with pytest.raises(SourceUnavailableError) as caught:
        caller.call("Put", b"1")
    assert caught.value.definite
    assert str(data) not in str(caught.value), "what is inside of the service stays there"


def test_an_open_call_does_not_keep_others_waiting(caller: Caller, service: Service):
    caller.seal()
    done: list[bytes] = []
    held = threading.Thread(target=lambda: done.append(caller.call("Held", b"held")))
    held.start()
    wait_until(lambda: ("Held", b"held") in service.handlers.seen)
    assert caller.call("Put", b"meanwhile") == b"done"
    service.handlers.may_end.set()
    held.join()
    assert done == [b"done"]
