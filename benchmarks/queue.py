"""A queue of threads for one lock that goes from hand to hand: what each hand-off took, whichever the store."""

import threading
import time
from collections.abc import Callable

import fenceline

TTL_S = 600.0
MS_PER_NS = 1e-6


def hand_offs(source: fenceline.Source, count: int, asked: Callable[[], int]) -> tuple[list[float], float]:
    """Have so many threads wait, and return the milliseconds from each release to the next one's return, and how much
    more `asked` counts for each.
    """
    lock = source.lock(f"queue-{count}", ttl=TTL_S)
    returned: list[tuple[int, int]] = []

    def wait_and_pass_on() -> None:
        lease = lock.acquire()
        got = time.perf_counter_ns()
        assert lease is not None
        lease.release()
        returned.append((got, time.perf_counter_ns()))

    first = lock.acquire()
    assert first is not None
    threads = [threading.Thread(target=wait_and_pass_on) for _ in range(count)]
    for thread in threads:
        thread.start()
    while len(source.info(lock.name).waiters) < count:
        time.sleep(0.05)
    time.sleep(1.0)  # Let them fall asleep.
    before, began = asked(), time.perf_counter_ns()
    first.release()
    for thread in threads:
        thread.join()
    each = (asked() - before) / count
    returned.sort()
    ends = [began, *(released for _, released in returned)]
    return [(got - end) * MS_PER_NS for (got, _), end in zip(returned, ends, strict=False)], each
