"""A small gRPC client for etcd: single calls in the caller's thread or on its loop, and the stream of watches.

Promise: a call waits `request_timeout_s` at most. The client uses one member at a time; when a call fails, the next
call goes to the next member of the URL, and the same call does so at once if the request was certainly not sent. A
member that has not answered yet is asked for its status first, so that a frozen one costs little. The login's token is
renewed when etcd asks for it. Errors become FencelockErrors, with `definite` as the facts are. A forked child uses its
own channels and never touches its parent's, which it keeps for that reason.
Never: a request repeated that may have been executed; a password or a token shown.

Loops wait for gRPC's futures. They do not use gRPC's asyncio API, which does not survive a fork.
"""

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import grpc

from fencelock.errors import ConfigError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.errors import is_stale_login, map_error, may_succeed_elsewhere, was_never_sent
from fencelock.stores.etcd.connection.forks import GATE
from fencelock.stores.etcd.connection.url import EtcdConnectionInfo, Tls

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
_NEEDS_LEADER = ("hasleader", "true")
"""etcd ends a stream with this header when its member has lost the leader, and so no longer sees all changes."""


PROBE_S = 0.5
"""How long a member that has not answered yet is asked for its status before the client tries the next one.

A frozen host accepts connections. gRPC would wait for 2 s, at each start of a program.
"""
MAX_RENEWED_LOGINS = 3
"""In one call. Each change of users or roles may invalidate a login, and operators make several changes at once."""
Metadata = tuple[tuple[str, str], ...]


class Method(NamedTuple):
    """One method of etcd's API: its path, and the type of its reply."""

    path: str
    reply: Any


RANGE = Method("/etcdserverpb.KV/Range", wire.RangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", wire.TxnResponse)
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", wire.LeaseGrantResponse)
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", wire.LeaseRevokeResponse)
# A stream in etcd's API; with one request it is one round trip like any other.
LEASE_KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", wire.LeaseKeepAliveResponse)
LEASE_TIME_TO_LIVE = Method("/etcdserverpb.Lease/LeaseTimeToLive", wire.LeaseTimeToLiveResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", wire.WatchResponse)
STATUS = Method("/etcdserverpb.Maintenance/Status", wire.StatusResponse)
_AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", wire.AuthenticateResponse)


class EtcdAttempt(NamedTuple):
    """One call to one member, which is its position in the URL."""

    member: int
    method: Method
    request: Any
    request_timeout_s: float
    metadata: Metadata


Attempts = Generator[EtcdAttempt, Any, Any]
"""Yields calls, is sent the answer of each or has its error thrown in, and returns the last answer."""


class _Channels:
    """The channels to all members. Each opens with its first call; all are closed when the program drops this object.

    gRPC keeps every channel that was not closed, because of forks.
    """

    def __init__(self, info: EtcdConnectionInfo) -> None:
        self._info = info
        self._open: dict[int, Any] = {}
        weakref.finalize(self, _discard, self._open).atexit = False
        self._callables: dict[tuple[int, Method], Any] = {}

    def callable(self, member: int, method: Method) -> Any:
        """Return gRPC's callable for the method at the member."""
        known = self._callables.get((member, method))
        if known is None:
            channel = self.channel(member)
            known = self._callables[member, method] = channel.unary_unary(method.path, **_codec(method))
        return known

    def channel(self, member: int) -> Any:
        """Return the channel to the member."""
        if member not in self._open:
            _close_discarded()
            target = self._info.endpoints[member]
            if self._info.tls is None:
                self._open[member] = grpc.insecure_channel(target, options=_OPTIONS)
            else:
                credentials = _credentials(self._info.tls)
                self._open[member] = grpc.secure_channel(target, credentials, options=_OPTIONS)
            GATE.register()
        return self._open[member]


def _discard(channels: dict[int, Any]) -> None:
    _DISCARDED.extend(channels.values())
    _close_discarded()


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
                _DISCARDED.pop().close()
    finally:
        GATE.leave(call)


class EtcdClient:
    """One process's connection to one cluster, for any number of threads and loops."""

    def __init__(self, info: EtcdConnectionInfo) -> None:
        self.info = info
        self._member = 0
        self._has_answered = False
        """Whether the present member has."""
        self._reset()
        _CLIENTS.add(self)

    def _reset(self) -> None:
        self._channels = _Channels(self.info)
        self._metadata: Metadata = ()
        self._member_listener: weakref.WeakMethod[Callable[[], None]] | None = None

    def after_fork_in_child(self) -> None:
        """Use new channels, and keep the parent's untouched."""
        _INHERITED.append(self._channels)
        self._reset()

    def set_member_listener(self, listener: Callable[[], None]) -> None:
        """Call a method whenever the client changes to another member.

        Only a weak reference is kept: the method's object refers to this client, and the cycle would keep both alive
        until the garbage collector runs.
        """
        self._member_listener = weakref.WeakMethod(listener)

    def call(self, method: Method, request: Any, request_timeout_s: float) -> Any:
        """Call a method and return its answer; raise a FencelockError if there is none."""
        return run_generator(self._attempts(method, request, request_timeout_s), self._try)

    async def call_async(self, method: Method, request: Any, request_timeout_s: float) -> Any:
        """The same on the running loop."""
        return await run_generator_async(self._attempts(method, request, request_timeout_s), self._try_async)

    def begin(self, method: Method, request: Any, request_timeout_s: float) -> Any:
        """Begin a call to the present member in the background, and return gRPC's future."""
        return self._begin(EtcdAttempt(self._member, method, request, request_timeout_s, self._metadata))

    def watch(self, requests: Iterator[Any]) -> Any:
        """Open a stream of watches to the present member, and return gRPC's call: iterate over it, or cancel it."""
        channel = self._channels.channel(self._member)
        call = channel.stream_stream(WATCH.path, **_codec(WATCH))
        return call(requests, metadata=(*self._metadata, _NEEDS_LEADER))

    def _try(self, attempt: EtcdAttempt) -> Any:
        under_way = GATE.enter()
        try:
            call = self._channels.callable(attempt.member, attempt.method)
            return call(attempt.request, timeout=attempt.request_timeout_s, metadata=attempt.metadata)
        finally:
            GATE.leave(under_way)

    async def _try_async(self, attempt: EtcdAttempt) -> Any:
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()
        future = self._begin(attempt)
        future.add_done_callback(lambda _: _set_answered(loop, answered))
        try:
            await answered.wait()
        except asyncio.CancelledError:
            future.cancel()
            raise
        return future.result()

    def _begin(self, attempt: EtcdAttempt) -> Any:
        under_way = GATE.enter()
        try:
            call = self._channels.callable(attempt.member, attempt.method)
            future = call.future(attempt.request, timeout=attempt.request_timeout_s, metadata=attempt.metadata)
        except BaseException:
            GATE.leave(under_way)
            raise
        future.add_done_callback(lambda _: GATE.leave(under_way))
        return future

    def _attempts(self, method: Method, request: Any, request_timeout_s: float) -> Attempts:
        end_s = time.monotonic() + request_timeout_s
        untried = len(self.info.endpoints)
        renewals_left = MAX_RENEWED_LOGINS if self.info.user is not None else 0
        if len(self.info.endpoints) > 1:
            yield from self._find_member(end_s)
        while True:
            member, left_s, login = self._member, max(0.0, end_s - time.monotonic()), self._metadata
            try:
                if self.info.user is not None and not login:
                    login = yield from self._log_in(member, left_s)
                return (yield EtcdAttempt(member, method, request, left_s, login))
            except grpc.RpcError as error:
                if renewals_left and is_stale_login(error):
                    renewals_left -= 1
                    if self._metadata is login:  # Otherwise another thread has renewed it.
                        self._metadata = ()
                    continue
                untried -= 1
                if may_succeed_elsewhere(error):
                    self._switch_member(member)
                    if was_never_sent(error) and untried:
                        continue
                raise map_error(error, self.info) from error

    def _find_member(self, end_s: float) -> Attempts:
        """Leave members that do not answer a question without effects; if that is all of them, use any."""
        for _ in self.info.endpoints:
            if self._has_answered:
                return
            member, left_s = self._member, max(0.0, end_s - time.monotonic())
            try:
                yield EtcdAttempt(member, STATUS, wire.StatusRequest(), min(PROBE_S, left_s / 2), ())
            except grpc.RpcError as error:
                if may_succeed_elsewhere(error):
                    self._switch_member(member)
                    continue
            self._has_answered = True

    def _log_in(self, member: int, request_timeout_s: float) -> Generator[EtcdAttempt, Any, Metadata]:
        request = wire.AuthenticateRequest(name=self.info.user, password=self.info.password)
        reply = yield EtcdAttempt(member, _AUTHENTICATE, request, request_timeout_s, ())
        login = self._metadata = (("token", reply.token),)
        return login

    def _switch_member(self, member: int) -> None:
        """Use the next member from now on, unless another thread has switched already."""
        if self._member == member and len(self.info.endpoints) > 1:
            self._member = (member + 1) % len(self.info.endpoints)
            self._has_answered = False
            tell = self._member_listener() if self._member_listener is not None else None
            if tell is not None:
                tell()


def _set_answered(loop: asyncio.AbstractEventLoop, answered: asyncio.Event) -> None:
    """Wake a loop that waits for an answer; a loop that was closed meanwhile does not wait."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(answered.set)


def _codec(method: Method) -> dict[str, Any]:
    return {"request_serializer": _serialized, "response_deserializer": method.reply.FromString}


def _serialized(message: Any) -> bytes:
    return message.SerializeToString()  # type: ignore[no-any-return]


def _credentials(tls: Tls) -> Any:
    return grpc.ssl_channel_credentials(_contents(tls.ca), _contents(tls.key), _contents(tls.cert))


def _contents(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"the file {path!r} of an etcd URL cannot be read: {error.strerror}") from error


def _after_fork_in_child() -> None:
    _INHERITED.extend(_DISCARDED)
    _DISCARDED.clear()
    for client in list(_CLIENTS):
        client.after_fork_in_child()


_DISCARDED: list[Any] = []
"""Channels of this process that nothing refers to, still to be closed."""
_INHERITED: list[Any] = []
"""The parent's objects in a forked child, kept because destroying them would use them."""
_CLIENTS: "weakref.WeakSet[EtcdClient]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork_in_child)
