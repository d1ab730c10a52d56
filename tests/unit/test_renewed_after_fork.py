"""What a forked child must not share with its parent is new before any thread of the child can use it.

If the first request of the child renewed it, a second thread could find the new process id and the parent's lock, which
nobody here gives back.
"""

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from fencelock import _platform
from fencelock._drivers.pool import BoundedPool
from fencelock.stores.document.state import DocumentState
from fencelock.stores.postgres.connection.url import parse_url as parse_postgres_url
from fencelock.stores.postgres.source.wakeup import PostgresListener
from fencelock.stores.zookeeper.connection.url import parse_url as parse_zookeeper_url
from fencelock.stores.zookeeper.guard.connection import ZooKeeperGuardClient
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions
from tests.support.documents import Documents, MemoryDocumentSource

POSTGRES = parse_postgres_url("postgresql://localhost/db")
ZOOKEEPER = parse_zookeeper_url("zookeeper://localhost:1/locks?tick_ms=2000")
RENEWED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "documents' sightings": (lambda: DocumentState("", lambda: 0, 1), lambda one: one.sightings._mutex),
    "documents' ended claims": (lambda: DocumentState("", lambda: 0, 1), lambda one: one.ended._mutex),
    "permits": (
        lambda: BoundedPool(MemoryDocumentSource(Documents()), 1.0, 1),
        lambda one: one._permits,
    ),
    "PostgreSQL's listener": (lambda: PostgresListener(POSTGRES), lambda one: one._mutex),
    "ZooKeeper's sessions": (lambda: ZooKeeperSessions(ZOOKEEPER), lambda one: one._of_process.mutex),
    "ZooKeeper's guards": (lambda: ZooKeeperGuardClient(ZOOKEEPER), lambda one: one._opening),
}


@pytest.mark.parametrize("name", RENEWED)
def test_h6_a_forked_child_begins_anew_before_its_first_request(name: str) -> None:
    make, part = RENEWED[name]
    renewed = make()
    before = part(renewed)
    child = os.fork()
    if child == 0:
        os._exit(0 if part(renewed) is not before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert part(renewed) is before


def test_h6_two_threads_of_a_child_find_no_lock_of_the_parent() -> None:
    state = DocumentState("", lambda: 0, 1)
    with state.sightings._mutex, state.ended._mutex:
        # Another thread of the parent has both; of the child's threads none gives them back.
        child = in_child_of_another_thread(lambda: state.ended.remember("claim", 0, "released"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def in_child_of_another_thread(use: Callable[[], object]) -> int:
    """Fork in a thread of its own; in the child, two threads do this. Return the child."""
    children: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            threads = [threading.Thread(target=use, daemon=True) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(5)
            os._exit(1 if any(thread.is_alive() for thread in threads) else 0)
        children.append(child)

    forking = threading.Thread(target=fork)
    forking.start()
    forking.join()
    return children[0]


def test_what_is_renewed_lives_no_longer_for_that() -> None:
    state = DocumentState("", lambda: 0, 1)
    kept = weakref.ref(state)
    assert state in _platform._RENEWED
    del state
    gc.collect()
    assert kept() is None
