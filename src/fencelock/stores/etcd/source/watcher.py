"""How a process hears that a key is gone: one stream of watches for all its claims, in one thread.

Promise: whoever watches a key is told when the key is deleted after the given revision, or as soon as that might go
unheard, because the stream broke or the revision is not kept any more: then everybody looks for himself. The stream
goes where single calls go, so that it does not stay with a member that they have left.
Never: a caller kept waiting here; anything concluded from silence.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import grpc

from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import EtcdClient
from fencelock.stores.etcd.connection.errors import map_error
from fencelock.stores.etcd.connection.forks import GATE

logger = logging.getLogger("fencelock")
RETRY_S = 0.1
MAX_RETRY_S = 2.0
_DELETED = 1
_NO_PUTS = 0


@dataclass(slots=True)
class Watch:
    """Who is told of which key."""

    key: bytes
    revision: int
    """The first one at which a deletion counts."""
    notify: Callable[[], None]
    is_urgent: bool
    since: int | None = None
    """After which revision deletions are told; None: that is not known yet."""


class Watcher:
    """The watches of one process at one cluster, and the thread that serves them once there is one."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._mutex = threading.RLock()
        self._watches: dict[int, Watch] = {}
        self._last_id = 0
        self._requests: SimpleQueue[Any] | None = None
        self._call: Any = None
        self._is_running = False
        client.set_member_listener(self.reopen)

    def watch(self, key: bytes, revision: int, notify: Callable[[], None], *, is_urgent: bool) -> int:
        """Have `notify` called once when the key is gone, in the watcher's thread; return a number for `forget`.

        An urgent watch is told at once, and may be told for nothing when it begins. etcd serves a watch that begins in
        the past, and be that a moment ago, every 100 ms; an urgent one begins when etcd hears of it.
        """
        with self._mutex:
            self._last_id += 1
            watch = self._watches[self._last_id] = Watch(key, revision, notify, is_urgent)
            if self._requests is not None:
                self._requests.put(_create_request(self._last_id, watch))
            elif not self._is_running:
                self._is_running = True
                threading.Thread(target=self._serve, name="fencelock-watcher", daemon=True).start()
            return self._last_id

    def has_seen(self, watch_id: int, revision: int) -> bool:
        """Take note that whoever watches has seen the key at this revision; return whether the watch tells of what
        comes after.
        """
        with self._mutex:
            watch = self._watches.get(watch_id)
            if watch is None or (watch.since is not None and watch.since > revision):
                return False
            watch.revision = revision + 1
            return True

    def is_watching(self, watch_id: int) -> bool:
        """Tell whether this watch has neither told that its key is gone, nor that this might go unheard."""
        return watch_id in self._watches

    def forget(self, watch_id: int) -> None:
        """Watch this no more."""
        with self._mutex:
            if self._watches.pop(watch_id, None) is not None and self._requests is not None:
                self._requests.put(_cancel_request(watch_id))

    def reopen(self) -> None:
        """Open the stream anew, at the member that is spoken to now."""
        call = self._call
        if call is not None:
            call.cancel()

    def close(self) -> None:
        """End the stream if nobody watches."""
        with self._mutex:
            if not self._watches:
                self.reopen()

    # --- the thread -------------------------------------------------------------------------------
    def _serve(self) -> None:
        retry_s = RETRY_S
        while True:
            begun_s = time.monotonic()
            try:
                self._read_stream()
            except Exception as error:
                if self._watches:
                    known = map_error(error, self._client.info) if isinstance(error, grpc.RpcError) else error
                    logger.info("waiters look for themselves now: %s", known)
                # gRPC raises the call itself: its frames would keep it, and it them, and both all that is here.
                error.with_traceback(None)
            self._notify_all()
            if self._try_stop():
                return
            retry_s = RETRY_S if time.monotonic() - begun_s > MAX_RETRY_S else min(2 * retry_s, MAX_RETRY_S)
            time.sleep(retry_s)

    def _read_stream(self) -> None:
        """Open the stream, and pass on what it tells until it ends."""
        requests: SimpleQueue[Any] = SimpleQueue()
        with self._mutex:
            self._requests = requests
            for watch_id, watch in self._watches.items():
                requests.put(_create_request(watch_id, watch))
        under_way = GATE.enter_stream(self.reopen)
        try:
            self._call = self._client.watch(iter(requests.get, None))
            for response in self._call:
                self._handle(response)
        finally:
            with self._mutex:
                self._requests = None
            call, self._call = self._call, None
            if call is not None:
                call.cancel()
            requests.put(None)
            GATE.leave(under_way)

    def _handle(self, response: Any) -> None:
        if response.created and response.canceled:
            # Refused, as for a login that is over: etcd does not always say which watch it was, and may hear of no
            # other on this stream.
            self.reopen()
        elif response.created:
            self._begin(response)
        # A watch that was cancelled by etcd, for its revision is not kept any more, has missed something.
        if response.canceled or any(event.type == _DELETED for event in response.events):
            with self._mutex:
                watch = self._watches.get(response.watch_id)
                self.forget(response.watch_id)
            if watch is not None:
                watch.notify()

    def _begin(self, response: Any) -> None:
        """Take note of when an urgent watch began; have its owner look once more for what came before that."""
        with self._mutex:
            watch = self._watches.get(response.watch_id)
            if watch is None or not watch.is_urgent:
                return
            watch.since = response.header.revision
            has_missed = watch.since >= watch.revision
        if has_missed:
            watch.notify()

    def _notify_all(self) -> None:
        with self._mutex:
            watches, self._watches = self._watches, {}
        for watch in watches.values():
            with suppress(Exception):
                watch.notify()

    def _try_stop(self) -> bool:
        with self._mutex:
            self._is_running = bool(self._watches)
            return not self._is_running


def _create_request(watch_id: int, watch: Watch) -> Any:
    request = wire.WatchRequest()
    request.create_request.key = watch.key
    request.create_request.start_revision = 0 if watch.is_urgent else watch.revision
    request.create_request.watch_id = watch_id
    request.create_request.filters.append(_NO_PUTS)
    return request


def _cancel_request(watch_id: int) -> Any:
    request = wire.WatchRequest()
    request.cancel_request.watch_id = watch_id
    return request
