"""Hold many leases for some seconds; print the share of a core that it took, and the bytes that each lease takes."""

import sys
import time
import tracemalloc

import fenceline

TTL_S = 10.0


def main(url: str, count: int, seconds: float) -> None:
    """Print `percent bytes`."""
    with fenceline.connect(url) as source:
        with source.lock("warm-up"):
            pass
        leases = [source.lock(f"lock-{number}", ttl=TTL_S).acquire() for number in range(count)]
        started_s, cpu_s = time.monotonic(), time.process_time()
        time.sleep(seconds)
        share = (time.process_time() - cpu_s) / (time.monotonic() - started_s)
        assert all(lease is not None and lease.is_valid for lease in leases)
        print(share * 100, _bytes_each(source, count))


def _bytes_each(source: fenceline.Source, count: int) -> float:
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    leases = [source.lock(f"more-{number}", ttl=600).acquire() for number in range(count)]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(leases) == count
    return (after - before) / count


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
