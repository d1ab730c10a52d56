"""Whether a server that speaks S3 keeps the conditions of writes, also when many write at once, and those of deletes.

Some servers ignore them, and some compare first and write later.

Promise: what is written for the trial is deleted, if the role may delete it. Only what the server has told convicts it:
a write without an answer may have been done or not.
Never: a manifest or an object of a resource touched.
"""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any
from uuid import uuid4

from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError, UnsupportedError
from fencelock.model import Finding
from fencelock.stores.aws.clients import Calls
from fencelock.stores.encoding import RESERVED
from fencelock.stores.s3.connection.calls import FoundObject, delete_object, delete_seen, read_object, write_object

Run = Callable[[Calls[Any]], Any]
"""Runs what is asked in the caller's thread."""
_WRONG_ETAG = f'"{"0" * 32}"'
_TOGETHER_S = 10.0
"""How long a writer waits for the others."""
RACERS, ROUNDS = 16, 6
"""Of so many who create one object at once, one may succeed, each time."""
WRITERS, TURNS = 10, 8
"""So many count in one object, each so often: it has to hold the number of those who were told that they did."""
TRIAL_S = 5.0
"""Neither trial goes on for longer than that: some servers, SeaweedFS for example, let a writer who meets another one
wait for a second."""


def new_probe(folder: str) -> str:
    """Return a new name for an object that is written in order to see what the store does."""
    return f"{folder}{RESERVED}/probe/{uuid4().hex}"


def prove(url: str, bucket: str, name: str) -> Calls[None]:
    """Raise UnsupportedError unless the server keeps the conditions of writes to an object of this new name."""
    problem = yield from _find_ignored(bucket, name)
    with suppress(SourceError):  # A role may be forbidden to delete.
        yield from delete_object(bucket, name)
    if problem is not None:
        raise UnsupportedError(
            f"{url} {problem}, so a late or stale write could not be refused there: use a server that keeps the "
            f"conditions of writes, as Amazon S3 does"
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


def keeps_deletes(bucket: str, name: str) -> Calls[bool]:
    """Return whether the server deletes an object only if it is the one that was read; tried at one of this name."""
    etag = yield from write_object(bucket, name, b"kept")
    is_refused = not (yield from delete_seen(bucket, name, _WRONG_ETAG))
    if is_refused and etag is not None and (yield from delete_seen(bucket, name, etag)):
        return True
    yield from delete_object(bucket, name)
    return False


def examine_races(url: str, run: Run, bucket: str, folder: str) -> list[Finding]:
    """Report a server that breaks the conditions of writes while many write at once."""
    problem = find_broken_races(run, bucket, folder)
    if problem is None:
        return []
    return [
        Finding(
            "conditions-broken",
            f"{url}: {problem}, so the server keeps the conditions of writes only as long as nobody else writes",
            "use a server that compares and writes in one step, as Amazon S3 does; ask its makers, or a newer version",
        )
    ]


def find_broken_races(run: Run, bucket: str, folder: str) -> str | None:
    """Return what went wrong when many wrote at once; None if nothing did."""
    names = [new_probe(folder) for _ in range(ROUNDS + 1)]
    try:
        with ThreadPoolExecutor(RACERS) as pool:
            return _find_creators(pool, run, bucket, names[1:]) or _find_lost_turn(pool, run, bucket, names[0])
    finally:
        for name in names:
            with suppress(SourceError):
                run(delete_object(bucket, name))


def _find_creators(pool: ThreadPoolExecutor, run: Run, bucket: str, names: list[str]) -> str | None:
    ends, rounds, lost = time.monotonic() + TRIAL_S, 0, 0
    for name in names:
        lost += not _has_one_creator(pool, run, bucket, name)
        rounds += 1
        if time.monotonic() > ends:
            break
    if not lost:
        return None
    return f"in {lost} of {rounds} rounds not exactly one of {RACERS} writers at once created an object"


def _has_one_creator(pool: ThreadPoolExecutor, run: Run, bucket: str, name: str) -> bool:
    barrier = Barrier(RACERS)

    def create(number: int) -> bool | None:
        with suppress(BrokenBarrierError):
            barrier.wait(_TOGETHER_S)
        return _tell(run, write_object(bucket, name, b"%d" % number))

    told = Counter(pool.map(create, range(RACERS)))
    return told[True] <= 1 <= told[True] + told[None]


def _find_lost_turn(pool: ThreadPoolExecutor, run: Run, bucket: str, name: str) -> str | None:
    run(write_object(bucket, name, b"0"))
    ends = time.monotonic() + TRIAL_S

    def count(_: int) -> Counter[bool | None]:
        told: Counter[bool | None] = Counter()
        while told.total() < TURNS and time.monotonic() < ends:
            told[_tell(run, _increment(bucket, name))] += 1
        return told

    told = sum(pool.map(count, range(WRITERS)), Counter[bool | None]())
    kept = _number_in(run(read_object(bucket, name)))
    # A write without an answer may have been done or not.
    if told[True] <= kept <= told[True] + told[None]:
        return None
    return f"{told[True]} writes on the condition of what was read succeeded, and {kept} are left"


def _increment(bucket: str, name: str) -> Calls[str | None]:
    found = yield from read_object(bucket, name)
    if found is None:
        return None
    return (yield from write_object(bucket, name, b"%d" % (_number_in(found) + 1), found.etag))


def _number_in(found: FoundObject | None) -> int:
    """Return the number in an object; 0 if a server has lost or changed what was written there."""
    return int(found.body) if found is not None and found.body.isdigit() else 0


def _tell(run: Run, write: Calls[str | None]) -> bool | None:
    """Return whether the server says that it has written; None if it does not say."""
    try:
        return run(write) is not None
    except OutcomeUnknownError:
        return None
    except SourceUnavailableError:
        return False
