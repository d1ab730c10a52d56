"""A guard's connection to ZooKeeper, and the one session that all blocks and threads of a process share.

Promise: the first request opens the session; a forked child opens its own, and so does the next request after the
servers could not be reached in time. A mark is read after a `sync`, so the value is never older than the request. A
request waits REQUEST_TIMEOUT_S at most, in a helper thread; if it is cut off and only reads, its error is definite.
What ZooKeeper answers about a node is returned or raised as kazoo's own error.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.exceptions import NoNodeError, ZookeeperError
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL

from fencelock._platform import renew_after_fork
from fencelock.clock import boottime_ms
from fencelock.errors import FencelockError, SourceUnavailableError
from fencelock.protocol.guard_requests import Finish
from fencelock.stores.errors import raise_mapped
from fencelock.stores.helper_threads import in_helper_thread
from fencelock.stores.optimistic.connection import OptimisticConnection
from fencelock.stores.optimistic.stored_values import StoredValue
from fencelock.stores.zookeeper.connection.client import FORKS, ZooKeeperClient, answers, open_client
from fencelock.stores.zookeeper.connection.errors import (
    OUTCOME_UNKNOWN,
    ZooKeeperTimeoutError,
    copy_error,
    map_error,
    map_refusal,
)
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo
from fencelock.stores.zookeeper.guard.codec import ZooKeeperGuardCodec, ZooKeeperGuardLayout
from fencelock.stores.zookeeper.guard.colocated import ZooKeeperColocatedLocks

REQUEST_TIMEOUT_S = 5.0
MAX_REQUEST_S = 4 * REQUEST_TIMEOUT_S
"""How long a request is awaited, and the session that it opens first."""
SESSION_TICKS = 10
"""How long the servers keep a session that they do not hear from: it holds nothing, so any time will do."""
_CUT_OFF = (*OUTCOME_UNKNOWN, ZooKeeperTimeoutError)


class ZooKeeperGuardClient:
    """A shared session. Any thread may use it."""

    def __init__(self, info: ZooKeeperConnectionInfo) -> None:
        self._info = info
        self._client: ZooKeeperClient | None = None
        self._session_ms = SESSION_TICKS * info.tick_ms
        self._heard_ms = boottime_ms()
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Make a new lock: a forked child may find the old one taken by a thread that the child does not have."""
        # It is held while the session opens, so that two threads do not open two.
        self._opening = threading.Lock()

    @property
    def session(self) -> object:
        """The id of the session; None before its first connection."""
        client = self._client
        return None if client is None or client.client_id is None else client.client_id[0]

    @property
    def acl(self) -> list[ACL]:
        """The access list of the nodes that it creates."""
        return list(self._info.acl)

    def close(self) -> None:
        """End the session; never raises."""
        if self._client is not None:
            FORKS.close(self._client)

    # --- marks --------------------------------------------------------------------------------------------------------
    def read(self, paths: Sequence[str]) -> list[StoredValue]:
        """Return the present values of nodes."""
        found = self._send(lambda client: [client.sync_async("/"), *map(client.get_async, paths)])
        return [_decode_stored(one) for one in _after_sync(found)]

    def read_with_children(self, paths: Sequence[str]) -> tuple[list[StoredValue], list[list[str]]]:
        """Return the present values of nodes, and the paths of each node's children."""
        found = self._send(
            lambda client: [
                client.sync_async("/"), *map(client.get_async, paths), *map(client.get_children_async, paths)
            ]
        )  # fmt: skip
        answered = _after_sync(found)
        values, names = answered[: len(paths)], answered[len(paths) :]
        below = [[f"{path}/{name}" for name in _names(one)] for path, one in zip(paths, names, strict=True)]
        return [_decode_stored(one) for one in values], below

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, ZnodeStat] | None]:
        """Return the values and stats of nodes as of the last `read` or later; None for a node that does not exist."""
        found = self._send(lambda client: [*map(client.get_async, paths)])
        return [None if isinstance(one, NoNodeError) else _value_or_raise(one) for one in found]

    def child_names(self, path: str) -> list[str]:
        """Return the names of a node's present children; none if the node does not exist."""
        found = self._send(lambda client: [client.sync_async("/"), client.get_children_async(path)])
        return _names(*_after_sync(found))

    def get_access_lists(self, paths: Sequence[str]) -> list[list[ACL]]:
        """Return the access lists of nodes; an empty one for a node that does not exist."""
        found = self._send(lambda client: [*map(client.get_acls_async, paths)])
        return [[] if isinstance(one, NoNodeError) else _value_or_raise(one)[0] for one in found]

    def make(self, *paths: str) -> None:
        """Create nodes, and those above them, unless they exist."""
        for one in self._send(lambda client: [client.ensure_path_async(path) for path in paths], is_write=True):
            _value_or_raise(one)

    def commit(self, operations: Sequence[Any]) -> list[Any]:
        """Execute all operations, or none; return the result of each, kazoo's errors included."""
        self._probe_if_silent()

        def ask(client: ZooKeeperClient) -> list[Any]:
            request = client.transaction()
            request.operations.extend(operations)
            return [request.commit_async()]

        return _value_or_raise(self._send(ask, is_write=True)[0])  # type: ignore[no-any-return]

    # --- blocks -------------------------------------------------------------------------------------------------------
    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        """Return a node's value and stat."""
        return self._one(lambda client: client.get_async(path))  # type: ignore[no-any-return]

    def exists(self, path: str) -> ZnodeStat | None:
        """Return a node's stat; None if the node does not exist."""
        return self._one(lambda client: client.exists_async(path))

    def get_children(self, path: str) -> list[str]:
        """Return the names of a node's children."""
        return self._one(lambda client: client.get_children_async(path))  # type: ignore[no-any-return]

    # --- requests ---------------------------------------------------------------------------------------------------
    def _one(self, ask: Callable[[ZooKeeperClient], Any]) -> Any:
        return _value_or_raise(self._send(lambda client: [ask(client)])[0])

    def _probe_if_silent(self) -> None:
        """Send a harmless request first, if the servers may have ended the session since it was last used.

        They do so when this process was frozen. A write that met the end of the session would leave its outcome
        unknown; this request does not.
        """
        if boottime_ms() - self._heard_ms > self._session_ms / 2:
            with suppress(SourceUnavailableError):
                self._send(lambda client: [client.sync_async("/")])

    def _send(self, ask: Callable[[ZooKeeperClient], list[Any]], *, is_write: bool = False) -> list[Any]:
        """Send requests together, in order, and return the answer of each."""
        return in_helper_thread(partial(self._send_here, ask, is_write), MAX_REQUEST_S)

    def _send_here(self, ask: Callable[[ZooKeeperClient], list[Any]], is_write: bool) -> list[Any]:
        client = self._connected()
        try:
            found = answers(ask(client), REQUEST_TIMEOUT_S)
        except _CUT_OFF as error:
            if is_write:
                raise_mapped(map_error(error, self._info), error)
            raise _read_error(self._info, error) from error
        self._heard_ms = boottime_ms()
        return found

    def _connected(self) -> ZooKeeperClient:
        with self._opening:
            if self._client is None or not FORKS.is_ours(self._client):
                self._client = open_client(self._info, self._session_ms, REQUEST_TIMEOUT_S)
            client = self._client
        try:
            client.wait_connected(REQUEST_TIMEOUT_S)
        except SourceUnavailableError:
            # Servers that restarted from older data refuse a session that has seen newer data: the next request opens
            # another.
            FORKS.close(client)
            raise
        return client


def _after_sync(found: list[Any]) -> list[Any]:
    """Return the answers behind a `sync`; raise its error, because without it the rest may be old."""
    _value_or_raise(found[0])
    return found[1:]


def _decode_stored(answer: Any) -> StoredValue:
    if isinstance(answer, NoNodeError):
        return StoredValue(None, 0)
    value, stat = _value_or_raise(answer)
    return StoredValue(value, stat.version)


def _names(answer: Any) -> list[str]:
    return [] if isinstance(answer, NoNodeError) else _value_or_raise(answer)


def _value_or_raise(answer: Any) -> Any:
    """Return an answer, or raise it if it is an error."""
    if isinstance(answer, Exception):
        raise copy_error(answer)
    return answer


def _read_error(info: ZooKeeperConnectionInfo, error: BaseException) -> FencelockError:
    return SourceUnavailableError(
        f"{info.url} could not be read ({type(error).__name__}): nothing was done by this. Try again"
    )


class ZooKeeperGuardConnection(OptimisticConnection[ZooKeeperGuardCodec]):
    """Answers a guard's requests, for one thread at a time."""

    def __init__(
        self,
        info: ZooKeeperConnectionInfo,
        layout: ZooKeeperGuardLayout,
        locks: ZooKeeperColocatedLocks | None,
        client: ZooKeeperGuardClient,
        guard: object,
    ) -> None:
        super().__init__(ZooKeeperGuardCodec(info.url, layout, locks), lambda call: call(client))
        self._info = info
        # The session ends when nothing refers to the guard: a connection does.
        self._guard = guard

    def perform(self, request: Any) -> Any:
        """Answer one request; kazoo's errors about a node are the user's own only where a block's end meets them."""
        try:
            return super().perform(request)
        except ZookeeperError as error:
            if isinstance(request, Finish):
                raise
            raise map_refusal(error, self._info) from error
