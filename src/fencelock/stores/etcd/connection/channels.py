"""gRPC's channels to the members of a cluster, and what becomes of one on which a thread of gRPC's did not start.

gRPC counts a call in the background, and the thread that will serve it, before it starts the thread. If the thread
cannot be started, it never starts another one for that channel: later calls wait for ever, and so does `close`. Each
later fork waits for 5 s, and gRPC does not work in the child. gRPC offers no public way to correct that; what it does
for its own forks is used here.

Promise: a channel on which a call did not begin is used for no other call, and is closed once the calls on it have
ended. Forks are as before.
"""

import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

import grpc
from grpc._cython import cygrpc

from fencelock._threads import check_can_start, is_start_failure, start_problem
from fencelock.errors import ConfigError, OutcomeUnknownError
from fencelock.stores.etcd.connection.forks import GATE
from fencelock.stores.etcd.connection.url import EtcdConnectionInfo
from fencelock.stores.helper_threads import in_helper_thread
from fencelock.stores.tls import TlsFiles, system_authorities

MAX_MESSAGE_BYTES = 64 * 2**20
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A member that is back is found soon; by default gRPC waits for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 200),
    # With pings, an idle stream notices a cut network. etcd closes connections that ping more often than every 5 s, or
    # without a call.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
)
_STARTS_SERVING_THREAD = "_run_channel_spin_thread"
"""gRPC's function that starts the thread which serves all calls in the background of one channel."""
Metadata = tuple[tuple[str, str], ...]


class Method(NamedTuple):
    """One method of etcd's API: its path, and the type of its reply."""

    path: str
    reply: Any


class EtcdAttempt(NamedTuple):
    """One call to one member, which is its position in the URL."""

    member: int
    method: Method
    request: Any
    request_timeout_s: float
    metadata: Metadata


class EtcdChannel:
    """One channel to a member. It is closed when nothing refers to it: the client, or a call under way.

    gRPC keeps every channel that was not closed, because of forks.
    """

    def __init__(self, native: Any) -> None:
        self.native = native
        self._callables: dict[Method, Any] = {}
        self._end: list[Callable[[], None]] = [native.close]
        """How to close it; empty if it must not be closed."""
        weakref.finalize(self, _discard, self._end).atexit = False
        _ALIVE.add(self)

    def note_failed_call(self, error: BaseException) -> None:
        """Note that gRPC could not begin a call: it may have no thread for the channel, and `close` waits for that."""
        if not is_start_failure(error):
            self.keep()
            return
        if not _ANCHOR:
            # Never used: while there is a channel, gRPC's core need not start its own threads again, see `channel`.
            _ANCHOR.append(EtcdChannel(grpc.insecure_channel("localhost", options=_OPTIONS)))
        uncount_unstarted_thread()
        if is_unserved(error):
            self._end[:] = [partial(close_unserved, self.native)]

    def keep(self) -> None:
        """Never close it: nobody knows whether a thread serves it, and `close` waits for that."""
        self._end.clear()
        _KEPT.append(self.native)

    def callable(self, method: Method) -> Any:
        """Return gRPC's callable for the method."""
        known = self._callables.get(method)
        if known is None:
            known = self._callables[method] = self.native.unary_unary(method.path, **codec(method))
        return known


class EtcdChannels:
    """The channels to all members. Each opens with its first call."""

    def __init__(self, info: EtcdConnectionInfo) -> None:
        self._info = info
        self._open: dict[int, EtcdChannel] = {}
        # Held while a call in the background begins, so that no other one begins on a channel that has just failed.
        # Never held during a fork, because every call is behind the gate.
        self._mutex = threading.RLock()

    def channel(self, member: int) -> EtcdChannel:
        """Return the channel to the member; SourceUnavailableError if gRPC could not start its threads now."""
        if (channel := self._open.get(member)) is None:
            if not _ALIVE:
                # With the first channel gRPC's core tries for 11 s to start its threads, and then aborts the process.
                check_can_start()
            _close_discarded()
            target = self._info.endpoints[member]
            if self._info.tls is None:
                native = grpc.insecure_channel(target, options=_OPTIONS)
            else:
                native = grpc.secure_channel(target, _credentials(self._info.tls), options=_OPTIONS)
            channel = self._open[member] = EtcdChannel(native)
            GATE.register()
        return channel

    def begin(self, member: int, start: Callable[[EtcdChannel], Any]) -> tuple[EtcdChannel, Any]:
        """Begin a call that threads of gRPC's serve; return its channel, and what `start` returns for that channel.

        gRPC cannot use a channel again on which such a thread did not start: it never starts another, and every later
        call would wait for ever. So a channel is discarded if a call on it did not begin.
        """
        with self._mutex:
            channel = self.channel(member)
            try:
                return channel, start(channel)
            except BaseException as error:
                self.discard(channel)
                channel.note_failed_call(error)
                del channel  # The error's traceback keeps what this frame refers to, and so do those below it.
                if is_start_failure(error):
                    raise OutcomeUnknownError(
                        f"{self._info.url}: {start_problem(cast('RuntimeError', error))}. Whether etcd did what was "
                        f"asked is unknown"
                    ) from error.with_traceback(None)
                raise

    def discard(self, channel: EtcdChannel) -> None:
        """Use another channel from now on; this one is closed when the calls on it have ended."""
        with self._mutex:
            for member, known in list(self._open.items()):
                if known is channel:
                    del self._open[member]


def _discard(end: list[Callable[[], None]]) -> None:
    _DISCARDED.extend(end)
    in_helper_thread(_close_discarded)


def _close_discarded() -> None:
    """Close the channels that nothing refers to, unless a fork is under way.

    Closing takes a lock, which a forked child would find taken. A finalizer, which may run inside a call, must not wait
    for the fork either.
    """
    if (call := GATE.enter_unless_forking()) is None:
        return
    try:
        with suppress(IndexError):
            while True:
                _DISCARDED.pop()()
    finally:
        GATE.leave(call)


def is_unserved(error: BaseException) -> bool:
    """Return whether the thread that could not be started is the one that serves the channel."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name == _STARTS_SERVING_THREAD for frame, _ in frames)


def close_unserved(channel: Any) -> None:
    """Close a channel without a serving thread: end its calls in this thread. No other thread may be using it."""
    channel._channel.close_on_fork(cygrpc.StatusCode.cancelled, "no thread could be started for it")  # noqa: SLF001
    channel.close()


def uncount_unstarted_thread() -> None:
    """Correct the count of threads for which a fork waits."""
    if cygrpc.is_fork_support_enabled():
        cygrpc._fork_state.active_thread_count.decrement()  # noqa: SLF001


def codec(method: Method) -> dict[str, Any]:
    """Return how gRPC encodes the method's requests and decodes its replies."""
    return {"request_serializer": _serialized, "response_deserializer": method.reply.FromString}


def _serialized(message: Any) -> bytes:
    return message.SerializeToString()  # type: ignore[no-any-return]


def _credentials(tls: TlsFiles) -> Any:
    # Without any, gRPC would trust authorities that it brings along.
    trusted = _contents(tls.ca) or system_authorities()
    return grpc.ssl_channel_credentials(trusted, _contents(tls.key or tls.cert), _contents(tls.cert))


def _contents(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"the file {path!r} of an etcd URL cannot be read: {error.strerror}") from error


def keep_discarded() -> None:
    """Never close the parent's discarded channels in a forked child."""
    _KEPT.extend(_DISCARDED)
    _DISCARDED.clear()


_ALIVE: "weakref.WeakSet[EtcdChannel]" = weakref.WeakSet()
_ANCHOR: list[EtcdChannel] = []
_DISCARDED: list[Callable[[], None]] = []
"""How to close the channels of this process that nothing refers to."""
_KEPT: list[Any] = []
"""Channels that are never closed: the parent's in a forked child, and those that may have no serving thread."""
