"""A small gRPC client for etcd: single calls in the caller's thread or on its loop, and the stream of watches.

Promise: a call waits `request_timeout_s` at most. The client uses one member at a time; when a call fails, the next
call goes to the next member of the URL, and the same call does so at once if the request was certainly not sent. A
member that has not answered yet is asked for its status first, so that a frozen one costs little. The login's token is
renewed when etcd asks for it. Errors become FencelockErrors, with `definite` as the facts are: a login that fails, or
that uses up the time, is definite, because the request itself was not sent. A forked child uses its
own channels and never touches its parent's, which it keeps for that reason. If gRPC cannot start a thread, the call
fails, and the next one uses a new channel.
Never: a request repeated that may have been executed; a password or a token shown.

Loops wait for gRPC's futures. They do not use gRPC's asyncio API, which does not survive a fork.
"""

import time
import weakref
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import grpc

from fencelock._platform import at_fork
from fencelock.errors import OutcomeUnknownError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.begun_call import EtcdBegunCall
from fencelock.stores.etcd.connection.channels import (
    EtcdAttempt,
    EtcdChannel,
    EtcdChannels,
    Metadata,
    Method,
    codec,
    keep_discarded,
)
from fencelock.stores.etcd.connection.errors import (
    is_stale_login,
    login_failed,
    map_error,
    map_login_error,
    may_succeed_elsewhere,
    out_of_time,
    was_never_sent,
)
from fencelock.stores.etcd.connection.forks import GATE
from fencelock.stores.etcd.connection.url import EtcdConnectionInfo
from fencelock.stores.helper_threads import in_helper_thread

_NEEDS_LEADER = ("hasleader", "true")
"""etcd ends a stream with this header when its member has lost the leader, and so no longer sees all changes."""


PROBE_S = 0.5
"""How long a member that has not answered yet is asked for its status before the client tries the next one.

A frozen host accepts connections. gRPC would wait for 2 s, at each start of a program.
"""
MAX_RENEWED_LOGINS = 3
"""In one call. Each change of users or roles may invalidate a login, and operators make several changes at once."""
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


Attempts = Generator[EtcdAttempt, Any, Any]
"""Yields calls, is sent the answer of each or has its error thrown in, and returns the last answer."""


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
        self._channels = EtcdChannels(self.info)
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

    def begin(self, method: Method, request: Any, request_timeout_s: float) -> EtcdBegunCall:
        """Begin a call to the present member in the background; OutcomeUnknownError if no thread can serve it."""
        attempt = EtcdAttempt(self._member, method, request, request_timeout_s, self._metadata)
        return EtcdBegunCall(self._channels, attempt)

    def watch(self, requests: Iterator[Any]) -> Any:
        """Open a stream of watches to the present member, and return gRPC's call: iterate over it, or cancel it.

        OutcomeUnknownError if no thread can serve it.
        """
        metadata = (*self._metadata, _NEEDS_LEADER)

        def start(channel: EtcdChannel) -> Any:
            return channel.native.stream_stream(WATCH.path, **codec(WATCH))(requests, metadata=metadata)

        return self._channels.begin(self._member, start)[1]

    def _try(self, attempt: EtcdAttempt) -> Any:
        return in_helper_thread(partial(self._call, attempt))

    def _call(self, attempt: EtcdAttempt) -> Any:
        under_way = GATE.enter()
        try:
            channel = self._channels.channel(attempt.member)  # Open as long as this refers to it.
            call = channel.callable(attempt.method)
            return call(attempt.request, timeout=attempt.request_timeout_s, metadata=attempt.metadata)
        finally:
            GATE.leave(under_way)

    async def _try_async(self, attempt: EtcdAttempt) -> Any:
        return await EtcdBegunCall(self._channels, attempt).result_async()

    def _attempts(self, method: Method, request: Any, request_timeout_s: float) -> Attempts:
        end_s = time.monotonic() + request_timeout_s
        untried = len(self.info.endpoints)
        renewals_left = MAX_RENEWED_LOGINS if self.info.user is not None else 0
        if len(self.info.endpoints) > 1:
            yield from self._find_member(end_s)
        while True:
            member, login, attempt = self._member, self._metadata, None
            try:
                login = login or (yield from self._log_in(member, _left_s(end_s)))
                attempt = EtcdAttempt(member, method, request, self._check_left_s(end_s), login)
                return (yield attempt)
            except grpc.RpcError as error:
                if renewals_left and is_stale_login(error):
                    renewals_left -= 1
                    if self._metadata is login:  # Otherwise another thread has renewed it.
                        self._metadata = ()
                    continue
                untried -= 1
                if may_succeed_elsewhere(error):
                    self._switch_member(member)
                    # Any other request may have been executed: whether to repeat it is the flow's to decide.
                    is_unsent = attempt is None or was_never_sent(error)
                    if is_unsent and untried and _left_s(end_s):
                        continue
                raise (map_login_error if attempt is None else map_error)(error, self.info) from error

    def _check_left_s(self, end_s: float) -> float:
        """Return the time left; SourceUnavailableError if there is none, because nothing was sent yet."""
        if not (left_s := _left_s(end_s)):
            raise out_of_time(self.info)
        return left_s

    def _find_member(self, end_s: float) -> Attempts:
        """Leave members that do not answer a question without effects; if that is all of them, use any."""
        for _ in self.info.endpoints:
            if self._has_answered:
                return
            member = self._member
            try:
                yield EtcdAttempt(member, STATUS, wire.StatusRequest(), min(PROBE_S, _left_s(end_s) / 2), ())
            except grpc.RpcError as error:
                if may_succeed_elsewhere(error):
                    self._switch_member(member)
                    continue
            self._has_answered = True

    def _log_in(self, member: int, request_timeout_s: float) -> Generator[EtcdAttempt, Any, Metadata]:
        """Return the login's token as metadata; none if the URL has no user."""
        if self.info.user is None:
            return ()
        request = wire.AuthenticateRequest(name=self.info.user, password=self.info.password)
        try:
            reply = yield EtcdAttempt(member, _AUTHENTICATE, request, request_timeout_s, ())
        except OutcomeUnknownError as error:
            raise login_failed(self.info, error) from error
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


def _left_s(end_s: float) -> float:
    return max(0.0, end_s - time.monotonic())


def _after_fork_in_child() -> None:
    keep_discarded()
    for client in list(_CLIENTS):
        client.after_fork_in_child()


_INHERITED: list[Any] = []
"""The parent's objects in a forked child, kept because destroying them would use them."""
_CLIENTS: "weakref.WeakSet[EtcdClient]" = weakref.WeakSet()
at_fork(after_in_child=_after_fork_in_child)
