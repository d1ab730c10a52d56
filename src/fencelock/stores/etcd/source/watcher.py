"""The watches of one source object at its cluster: one stream, served by one thread, tells the deletion of keys.

Promise: a watch notifies its owner when the key is deleted after the given revision, or as soon as a deletion might be
missed, because the stream broke or etcd no longer keeps the revision: then every owner reads the key itself. A watch is
live once etcd has confirmed it. The stream uses the same member as single calls, so it does not stay with a member that
they have left. If the thread cannot be started, watches are not live until a later call of `watch` or `start` succeeds.
Never: a caller kept waiting here; a conclusion drawn from silence.
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

from fencelock._threads import BackgroundThread
from fencelock.errors import SourceUnavailableError
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import EtcdClient
from fencelock.stores.etcd.connection.errors import map_error
from fencelock.stores.etcd.connection.forks import GATE
from fencelock.stores.helper_threads import in_helper_thread

logger = logging.getLogger("fencelock")
RETRY_S = 0.1
MAX_RETRY_S = 2.0
_DELETED = 1
_NO_PUTS = 0


@dataclass(slots=True)
class Watch:
    """A watched key, and whom to notify."""

    key: bytes
    revision: int
    """The first revision at which a deletion counts."""
    notify: Callable[[], None]
    is_urgent: bool
    since: int | None = None
    """The revision after which the stream tells deletions; None: etcd has not confirmed the watch yet."""


class Watcher:
    """The watches of one process at one cluster, and the thread that serves them while there are any."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        # Guards the watches and the stream's request queue together. Reentrant: `_handle` holds it and calls `forget`.
        # Owners are notified outside of it, because they may take locks of their own.
        self._mutex = threading.RLock()
        self._watches: dict[int, Watch] = {}
        self._last_id = 0
        self._requests: SimpleQueue[Any] | None = None
        self._call: Any = None
        self._background = BackgroundThread("fencelock-watcher")
        client.set_member_listener(self.reopen)

    def watch(self, key: bytes, revision: int, notify: Callable[[], None], *, is_urgent: bool) -> int:
        """Call `notify` once when the key is deleted, in the watcher's thread; return a number for `forget`.

        etcd serves a watch that begins in the past, even a moment ago, every 100 ms only. An urgent watch begins when
        etcd receives it, and is served at once; so it may have missed a deletion, and notifies its owner once for
        nothing.
        """
        with self._mutex:
            self._last_id += 1
            watch = self._watches[self._last_id] = Watch(key, revision, notify, is_urgent)
            if self._requests is not None:
                self._requests.put(_create_request(self._last_id, watch))
            else:
                self.start()
            return self._last_id

    def start(self) -> None:
        """Start the thread if there are watches, and it does not run; never raises."""
        with self._mutex:
            if self._watches:
                try:
                    self._background.start(self._serve)
                except SourceUnavailableError as error:
                    logger.warning("locks at %s are polled now: %s", self._client.info.url, error)

    @property
    def is_running(self) -> bool:
        """Whether the thread runs that serves the watches."""
        return self._background.is_running

    def is_live(self, watch_id: int) -> bool:
        """Return whether etcd has confirmed this watch, and it has told nothing yet."""
        watch = self._watches.get(watch_id)
        return watch is not None and watch.since is not None

    def has_seen(self, watch_id: int, revision: int) -> bool:
        """Note that the owner has seen the key at this revision.

        Return whether the watch tells everything after that revision.
        """
        with self._mutex:
            watch = self._watches.get(watch_id)
            if watch is None or (watch.since is not None and watch.since > revision):
                return False
            watch.revision = revision + 1
            return True

    def is_watching(self, watch_id: int) -> bool:
        """Return whether this watch has told neither a deletion nor that it might miss one."""
        return watch_id in self._watches

    def forget(self, watch_id: int) -> None:
        """Stop watching."""
        with self._mutex:
            if self._watches.pop(watch_id, None) is not None and self._requests is not None:
                self._requests.put(_cancel_request(watch_id))

    def reopen(self) -> None:
        """Open the stream again, at the member that single calls use now."""
        call = self._call
        if call is not None:
            # In a helper thread: a signal handler that raises inside gRPC would leave a lock of its channel taken.
            in_helper_thread(call.cancel)

    def close(self) -> None:
        """End the stream if there are no watches."""
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
                    logger.info("the stream of watches ended, so waiters poll now: %s", known)
                # gRPC raises the call object itself as the error: its traceback's frames would keep the call, and the
                # call the frames.
                error.with_traceback(None)
            # Deletions may have been missed, so every owner reads its key itself.
            self._notify_all()
            if self._try_stop():
                return
            retry_s = RETRY_S if time.monotonic() - begun_s > MAX_RETRY_S else min(2 * retry_s, MAX_RETRY_S)
            time.sleep(retry_s)

    def _read_stream(self) -> None:
        """Open the stream, and handle its responses until it ends."""
        requests: SimpleQueue[Any] = SimpleQueue()
        under_way = GATE.enter_stream(self.reopen)
        try:
            with self._mutex:
                self._requests = requests
                for watch_id, watch in self._watches.items():
                    requests.put(_create_request(watch_id, watch))
            self._call = self._client.watch(iter(requests.get, None))
            for response in self._call:
                self._handle(response)
        finally:
            with self._mutex:
                self._requests = None
            call, self._call = self._call, None
            if call is not None:
                call.cancel()
            # Ends the iterator of requests, for which a thread of gRPC's would wait for ever.
            requests.put(None)
            GATE.leave(under_way)

    def _handle(self, response: Any) -> None:
        """Handle one response of the stream."""
        if response.created and response.canceled:
            # Refused, for instance because the login has expired. etcd does not always name the watch, and may ignore
            # every other one on this stream.
            self.reopen()
        elif response.created:
            self._handle_created(response)
        # etcd cancels a watch when it no longer keeps the watch's revision: then the watch may have missed a deletion.
        if response.canceled or any(event.type == _DELETED for event in response.events):
            with self._mutex:
                watch = self._watches.get(response.watch_id)
                self.forget(response.watch_id)
            if watch is not None:
                watch.notify()

    def _handle_created(self, response: Any) -> None:
        """Note when a watch began; notify the owner of an urgent one if it may have missed something before."""
        with self._mutex:
            watch = self._watches.get(response.watch_id)
            if watch is None:
                return
            watch.since = response.header.revision if watch.is_urgent else watch.revision - 1
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
            if self._watches:
                return False
            # Under the mutex: a watch that is added now either keeps this thread, or starts the next one.
            self._background.end()
            return True


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
