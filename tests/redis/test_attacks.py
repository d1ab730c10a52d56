"""A holder that stands still while its successor works: the usual ways lose an acknowledged write, the guard none.

Each step is made by hand, so that the order is the worst one each time; real processes are frozen in
`test_guard_life.py`.
"""

from collections.abc import Callable

import pytest

import fencelock
from fencelock import StaleTokenError
from tests.redis.direct import Direct
from tests.redis.fix_redis import Corner
from tests.redis.guarded import Scene
from tests.support.guards import LOCK, RESOURCE, HandmadeLease

OLD, NEW = 4, 5
SWAP = """
if tonumber(redis.call('GET', KEYS[1]) or '0') > tonumber(ARGV[1]) then return 'stale' end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
return 'written'
"""


class Holder:
    """Adds its name to a list, in two steps; between them it may stand still."""

    def __init__(self, corner: Corner, token: int, name: str) -> None:
        self.direct = corner.direct
        self.token, self.name = token, name
        self.mark, self.list = corner.key("mark"), corner.key("list")
        self.read = ""

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> bool:
        """Write, and return whether that was acknowledged."""
        raise NotImplementedError


class ChecksFirst(Holder):
    """Compares its token in the program, and then writes."""

    def begin(self) -> None:
        assert int(self.direct.get(self.mark) or 0) <= self.token
        self.read = self.direct.get(self.list) or ""

    def end(self) -> bool:
        self.direct("SET", self.mark, self.token)
        self.direct("SET", self.list, self.read + self.name)
        return True


class ComparesInAScript(Holder):
    """Compares its token in the script that writes, as most sample code does; nothing is sealed before it reads."""

    def begin(self) -> None:
        self.read = self.direct.get(self.list) or ""

    def end(self) -> bool:
        done = self.direct("EVAL", SWAP, 2, self.mark, self.list, self.token, self.read + self.name)
        return bool(done == b"written")


class Guarded(Holder):
    """Uses the guard."""

    def __init__(self, corner: Corner, token: int, name: str) -> None:
        super().__init__(corner, token, name)
        self.block = fencelock.guard(corner.url, resource=RESOURCE, lock=LOCK).transaction(HandmadeLease(token))

    def begin(self) -> None:
        self.txn = self.block.__enter__()
        self.read = (self.txn.get(self.list) or b"").decode()
        self.txn.execute("SET", self.list, self.read + self.name)

    def end(self) -> bool:
        try:
            self.block.__exit__(None, None, None)
        except StaleTokenError:
            return False
        return True


def woken_between(old: Holder, new: Holder) -> list[str]:
    """The old holder writes after the new one has read. Return who was acknowledged, in order."""
    old.begin()
    in_thread(new.begin)
    done = [old.name] if old.end() else []
    return [*done, new.name] if in_thread(new.end) else done


def woken_after(old: Holder, new: Holder) -> list[str]:
    """The old holder writes after the new one has written."""
    old.begin()
    in_thread(new.begin)
    done = [new.name] if in_thread(new.end) else []
    return [*done, old.name] if old.end() else done


def in_thread(function: Callable[[], bool | None]) -> bool | None:
    """Call a function in another thread: this one has a guarded block open."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def lost(corner: Corner, way: type[Holder], order: Callable[[Holder, Holder], list[str]]) -> tuple[list[str], str]:
    """Return whose acknowledged writes are not in the list, and the list."""
    old, new = way(corner, OLD, "A"), way(corner, NEW, "B")
    acknowledged = order(old, new)
    found = Direct.to_slot(corner.servers, corner.prefix).get(corner.key("list")) or ""
    return [name for name in acknowledged if name not in found], found


@pytest.mark.parametrize(
    ("way", "order", "who"),
    [
        (ChecksFirst, woken_between, "A"),
        (ChecksFirst, woken_after, "B"),
        (ComparesInAScript, woken_between, "A"),
    ],
)
def test_the_usual_ways_lose_a_write(
    redis: Corner, way: type[Holder], order: Callable[[Holder, Holder], list[str]], who: str
) -> None:
    """The negative control: these orders are attacks."""
    assert lost(redis, way, order)[0] == [who]


@pytest.mark.parametrize("order", [woken_between, woken_after])
def test_g2_g3_the_guard_loses_none(redis_of_each_kind: Corner, order: Callable[[Holder, Holder], list[str]]) -> None:
    Scene(redis_of_each_kind)
    assert lost(redis_of_each_kind, Guarded, order) == ([], "B")
