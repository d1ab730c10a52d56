"""Whether a server that speaks S3 keeps the conditions of writes, also when many write at once.

Some servers ignore them, and some compare first and write later.

Promise: what is written for the trial is deleted, if the role may delete it.
Never: a manifest or an object of a resource touched.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

from fencelock.errors import SourceError, UnsupportedError
from fencelock.stores.aws.clients import Calls
from fencelock.stores.s3.connection.calls import delete_object, read_object, write_object

Run = Callable[[Calls[Any]], Any]
"""Runs what is asked in the caller's thread."""
_WRONG_ETAG = f'"{"0" * 32}"'
_TOGETHER_S = 10.0
"""How long a writer waits for the others."""
RACERS, ROUNDS = 16, 6
"""Of so many who create one object at once, one may succeed, each time."""
WRITERS, TURNS = 10, 8
"""So many count in one object, each so often: it has to hold the number of those who were told that they did."""


def prove(url: str, bucket: str, name: str) -> Calls[None]:
    """Raise UnsupportedError unless the server keeps the conditions of writes to an object of this new name."""
    problem = yield from _find_ignored(bucket, name)
    with suppress(SourceError):  # A role may be forbidden to delete.
        yield from delete_object(bucket, name)
    if problem is not None:
        raise UnsupportedError(
            f"{url} {problem}, so a stale writer could not be refused there: use a server that keeps the conditions of "
            f"writes, as Amazon S3 does"
        )


def _find_ignored(bucket: str, name: str) -> Calls[str | None]:
    """Return the condition that the server ignores, or cannot meet; None if it keeps them all."""
    first = yield from write_object(bucket, name, b"first")
    if first is None:
        return "refuses to create an object under a new name (If-None-Match)"
    if (yield from write_object(bucket, name, b"second")) is not None:
        return "ignores the condition that an object must not exist (If-None-Match)"
    if (yield from write_object(bucket, name, b"third", _WRONG_ETAG)) is not None:
        return "ignores the condition that an object must be the one that was read (If-Match)"
    if (yield from write_object(bucket, name, b"fourth", first)) is None:
        return "refuses to replace the very object that was read (If-Match)"
    if (yield from write_object(bucket, name, b"fifth", first)) is not None:
        return "replaces an object that was replaced since it was read (If-Match)"
    found = yield from read_object(bucket, name)
    return None if found is not None and found.body == b"fourth" else "does not show the last write to who reads next"


def find_broken_races(run: Run, bucket: str, new_name: Callable[[], str]) -> str | None:
    """Return what went wrong when many wrote at once; None if nothing did."""
    names = [new_name() for _ in range(ROUNDS + 1)]
    try:
        with ThreadPoolExecutor(RACERS) as pool:
            lost = sum(_count_creators(pool, run, bucket, name) != 1 for name in names[1:])
            if lost:
                return f"in {lost} of {ROUNDS} rounds not exactly one of {RACERS} writers at once created an object"
            return _find_lost_turn(pool, run, bucket, names[0])
    finally:
        for name in names:
            with suppress(SourceError):
                run(delete_object(bucket, name))


def _count_creators(pool: ThreadPoolExecutor, run: Run, bucket: str, name: str) -> int:
    barrier = Barrier(RACERS)

    def create(number: int) -> bool:
        with suppress(BrokenBarrierError):
            barrier.wait(_TOGETHER_S)
        return run(write_object(bucket, name, b"%d" % number)) is not None

    return sum(pool.map(create, range(RACERS)))


def _find_lost_turn(pool: ThreadPoolExecutor, run: Run, bucket: str, name: str) -> str | None:
    run(write_object(bucket, name, b"0"))

    def count(_: int) -> int:
        succeeded = 0
        for _turn in range(TURNS):
            found = run(read_object(bucket, name))
            after = b"%d" % (int(found.body) + 1)
            succeeded += run(write_object(bucket, name, after, found.etag)) is not None
        return succeeded

    told = sum(pool.map(count, range(WRITERS)))
    kept = int(run(read_object(bucket, name)).body)
    return None if kept == told else f"{told} writes on the condition of what was read succeeded, and {kept} are left"
