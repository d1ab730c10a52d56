"""One module for each store: a temporary private server, and hand-written locks on its plain client.

Each has `site()`, a block in which the store may be used; `by_hand(url)`, a block that yields the variants that
acquire and release are compared with, the least work first; and, where a store remembers free locks, `fill(url,
count)`, which makes it remember this many and returns the source's URL.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

import fencelock

if TYPE_CHECKING:
    from fencelock_lab.servers.server import Server

CONNECTIONS = 500
"""A server takes so many: 64 processes have several each, and it may not have missed those measured before yet."""
MOST_PROCESSES = 65
"""One that holds, and 64."""
PREFIX = "fl-bench-"
Operation = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Site:
    """A running store: its title, fencelock's source there, and its server, if it has one.

    `asked` returns the number of requests that the server has had, if it reports that at once. More processes than
    `most_processes` do not compete there: where waiters look from time to time, the last one's turn comes too late.
    """

    store: str
    title: str
    url: str
    server: "Server | None" = None
    asked: Callable[[], int] | None = None
    most_processes: int = MOST_PROCESSES


def install(url: str) -> None:
    """Install fencelock's source at a URL."""
    with fencelock.connect(url) as source:
        source.install()


def site(store: str) -> AbstractContextManager[Site]:
    """Return a block in which the store may be used."""
    block: AbstractContextManager[Site] = import_module(f"fencelock_lab.benchmarks.stores.{store}").site()
    return block


def by_hand(site: Site) -> AbstractContextManager[dict[str, Operation]]:
    """Return a block that yields the work by hand."""
    block: AbstractContextManager[dict[str, Operation]] = import_module(
        f"fencelock_lab.benchmarks.stores.{site.store}"
    ).by_hand(site)
    return block
