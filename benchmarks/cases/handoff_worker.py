"""One process of the hand-off case: acquires and releases for some seconds, and prints the times of each tenure."""

import sys
import time

import fenceline

HOLD_S = 0.002


def main(url: str, seconds: float) -> None:
    """Print `token acquired_ns released_ns` for each tenure, at the end."""
    tenures = []
    with fenceline.connect(url) as source:
        lock = source.lock("bench", ttl=10)
        with lock:
            pass  # What it needs is imported by now, which takes seconds while many processes begin.
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            lease = lock.acquire()
            acquired_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            assert lease is not None
            # The others are asleep in the queue by the time of the release, so that a gap is a hand-off.
            time.sleep(HOLD_S)
            tenures.append((lease.token, acquired_ns, time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
            lease.release()
    for tenure in tenures:
        print(*tenure)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
