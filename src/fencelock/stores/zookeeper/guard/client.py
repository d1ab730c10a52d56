"""The one session that a guard has with ZooKeeper in a process, for all of its blocks and threads.

Promise: opened by its first request, and anew in a forked child, and after the servers could not be reached in time.
What is read for a mark is read after a `sync`, so that it is never older than its request. A request waits
REQUEST_TIMEOUT_S at most; one that was cut off is definite if it only read. What ZooKeeper answers about a node is
returned or raised as kazoo's own error.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL

from fencelock.clock import boottime_ms
from fencelock.errors import FencelockError, SourceUnavailableError
from fencelock.stores.errors import raise_mapped
from fencelock.stores.quorum.guard_codec import StoredValue
from fencelock.stores.zookeeper.connection.client import (
    UNKNOWN,
    ZooKeeperClient,
    ZooKeeperTimeoutError,
    anew,
    answers,
    map_error,
    open_client,
)
from fencelock.stores.zookeeper.connection.forks import FORKS
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo

REQUEST_TIMEOUT_S = 5.0
SESSION_TICKS = 10
"""How long the servers remember a session that they do not hear of: it holds nothing, so any time will do."""
_CUT_OFF = (*UNKNOWN, ZooKeeperTimeoutError)


class ZooKeeperGuardClient:
    """A session that is shared. Any thread may use it."""

    def __init__(self, place: ZooKeeperConnectionInfo) -> None:
        self._place = place
        self._client: ZooKeeperClient | None = None
        self._session_ms = SESSION_TICKS * place.tick_ms
        self._heard_ms = boottime_ms()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """A forked child may find the lock taken, by a thread that it does not have."""
        self._process_id = os.getpid()
        self._opening = threading.Lock()

    @property
    def session(self) -> object:
        """Which session it has; None while it has no connection."""
        client = self._client
        return None if client is None or client.client_id is None else client.client_id[0]

    @property
    def acl(self) -> list[ACL]:
        """Who may do what with the nodes that it makes."""
        return list(self._place.acl)

    def close(self) -> None:
        """End the session; never raises."""
        if self._client is not None:
            FORKS.close(self._client)

    # --- for marks ----------------------------------------------------------------------------------------------------
    def read(self, paths: Sequence[str]) -> list[StoredValue]:
        """Return the values of nodes as of now."""
        found = self._asked(lambda client: [client.sync_async("/"), *map(client.get_async, paths)])
        return [_stored(one) for one in _without_sync(found)]

    def read_with_children(self, paths: Sequence[str]) -> tuple[list[StoredValue], list[list[str]]]:
        """Return the values of nodes as of now, and the paths of each one's children."""
        found = self._asked(
            lambda client: [
                client.sync_async("/"), *map(client.get_async, paths), *map(client.get_children_async, paths)
            ]
        )  # fmt: skip
        answered = _without_sync(found)
        values, names = answered[: len(paths)], answered[len(paths) :]
        below = [[f"{path}/{name}" for name in _names(one)] for path, one in zip(paths, names, strict=True)]
        return [_stored(one) for one in values], below

    def look(self, paths: Sequence[str]) -> list[tuple[bytes, ZnodeStat] | None]:
        """Return the values and stats of nodes as of the last `read`, or later; None for those that are not there."""
        found = self._asked(lambda client: [*map(client.get_async, paths)])
        return [None if isinstance(one, NoNodeError) else _raised(one) for one in found]

    def names_below(self, path: str) -> list[str]:
        """Return the names of a node's children as of now; none if there is no such node."""
        found = self._asked(lambda client: [client.sync_async("/"), client.get_children_async(path)])
        return _names(*_without_sync(found))

    def make(self, *paths: str) -> None:
        """Make nodes, and those above them, unless they are there."""
        for one in self._asked(lambda client: [client.ensure_path_async(path) for path in paths], is_write=True):
            _raised(one)

    def commit(self, operations: Sequence[Any]) -> list[Any]:
        """Do all of them, or none; return what came of each, kazoo's errors included."""
        self._break_silence()

        def ask(client: ZooKeeperClient) -> list[Any]:
            request = client.transaction()
            request.operations.extend(operations)
            return [request.commit_async()]

        return _raised(self._asked(ask, is_write=True)[0])  # type: ignore[no-any-return]

    # --- for blocks ---------------------------------------------------------------------------------------------------
    def get(self, path: str) -> tuple[bytes, ZnodeStat]:
        """Return a node's value and stat."""
        return self._one(lambda client: client.get_async(path))  # type: ignore[no-any-return]

    def exists(self, path: str) -> ZnodeStat | None:
        """Return a node's stat, None if there is none."""
        return self._one(lambda client: client.exists_async(path))

    def get_children(self, path: str) -> list[str]:
        """Return the names of a node's children."""
        return self._one(lambda client: client.get_children_async(path))  # type: ignore[no-any-return]

    def get_acls(self, path: str) -> list[ACL]:
        """Return who may do what with a node."""
        acls, _ = self._one(lambda client: client.get_acls_async(path))
        return acls  # type: ignore[no-any-return]

    # --- how it is asked ----------------------------------------------------------------------------------------------
    def _one(self, ask: Callable[[ZooKeeperClient], Any]) -> Any:
        return _raised(self._asked(lambda client: [ask(client)])[0])

    def _break_silence(self) -> None:
        """Ask for something that changes nothing, if the servers may have ended the session since it was last used, as
        they do when this process was frozen: to be cut off then leaves nothing in doubt, as it would for a write.
        """
        if boottime_ms() - self._heard_ms > self._session_ms / 2:
            with suppress(SourceUnavailableError):
                self._asked(lambda client: [client.sync_async("/")])

    def _asked(self, ask: Callable[[ZooKeeperClient], list[Any]], *, is_write: bool = False) -> list[Any]:
        """Send requests together, in their order, and return what came of each."""
        client = self._connected()
        try:
            found = answers(ask(client), REQUEST_TIMEOUT_S)
        except _CUT_OFF as error:
            if is_write:
                raise_mapped(map_error(error, self._place), error)
            raise _cut_off(self._place, error) from error
        self._heard_ms = boottime_ms()
        return found

    def _connected(self) -> ZooKeeperClient:
        if self._process_id != os.getpid():
            self._begin_anew()
        with self._opening:
            if self._client is None or not FORKS.is_ours(self._client):
                self._client = open_client(self._place, self._session_ms, REQUEST_TIMEOUT_S)
            client = self._client
        try:
            client.wait_connected(REQUEST_TIMEOUT_S)
        except SourceUnavailableError:
            # Servers that began from older data take no session that has seen more than they have: the next request
            # begins another.
            FORKS.close(client)
            raise
        return client


def _without_sync(found: list[Any]) -> list[Any]:
    """Return what came after a `sync` that was done; without it the rest may be old."""
    _raised(found[0])
    return found[1:]


def _stored(answer: Any) -> StoredValue:
    if isinstance(answer, NoNodeError):
        return StoredValue(None, 0)
    value, stat = _raised(answer)
    return StoredValue(value, stat.version)


def _names(answer: Any) -> list[str]:
    return [] if isinstance(answer, NoNodeError) else _raised(answer)


def _raised(answer: Any) -> Any:
    """Return an answer; raise it if it is an error."""
    if isinstance(answer, Exception):
        raise anew(answer)
    return answer


def _cut_off(place: ZooKeeperConnectionInfo, error: BaseException) -> FencelockError:
    return SourceUnavailableError(
        f"{place.url} could not be read ({type(error).__name__}): nothing was done by this. Try again"
    )
