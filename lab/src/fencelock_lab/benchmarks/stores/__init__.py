"""One module a store: a private server that is gone afterwards, and the same work done by hand on its plain client.

Each has `site()`, a block in which the store may be used; `by_hand(url)`, a block that yields what the cycle of acquire
and release is compared with, the least work first; and, where a store knows locks that nobody holds, `fill(url,
count)`, which makes it know so many and returns the source's URL.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tests.fleet import Closable
    from tests.private_server import PrivateServer

CONNECTIONS = 500
"""A server takes so many: 64 processes have several each, and it may not have missed those measured before yet."""
Operation = Callable[[], object]
AnyFleet = TypeVar("AnyFleet", bound="Closable")


@dataclass(frozen=True, slots=True)
class Site:
    """A store that may be used: what it is called, fencelock's source there, and its server, if it has one.

    `ask_source` returns how many requests the server has had, where it tells at once.
    """

    store: str
    title: str
    url: str
    server: "PrivateServer | None" = None
    asked: Callable[[], int] | None = None


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


@contextmanager
def fleet_on_disk(kind: Callable[[Path], AnyFleet]) -> Iterator[AnyFleet]:
    """Yield a fleet of servers in a folder on a disk, where a flush takes what it takes."""
    with tempfile.TemporaryDirectory(prefix="fl-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # Servers reach it that run as another user.
        with closing(kind(Path(folder))) as fleet:
            yield fleet
