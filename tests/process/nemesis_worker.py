"""One of many processes that add 1 to a guarded counter under one lock, reading and writing in separate transactions.

Run as `python -m tests.process.nemesis_worker LOCKS APP JOURNAL NAME`. Writes one line to its journal after each
commit that was acknowledged; the journal is appended to by single unbuffered writes, so that a kill loses no whole
line.
"""

import os
import random
import sys
import time

import fencelock

TTL_S = 0.6


def main(locks: str, app: str, journal: str, name: str) -> None:
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    source = fencelock.connect(locks)
    lock = source.lock("counter", ttl=TTL_S, timeout=5.0, holder=name)
    guard = fencelock.guard(app, resource="counter", lock="counter")
    sequence = 0
    while True:
        sequence += 1
        try:
            with lock as lease:
                add_one(guard, lease, name, sequence)
                os.write(descriptor, f"ok {sequence} {lease.token}\n".encode())
        except fencelock.FencelockError as error:
            verdict = "refused" if error.definite else "unknown"
            os.write(descriptor, f"{verdict} {sequence} {type(error).__name__}\n".encode())


def add_one(guard: fencelock.Guard, lease: fencelock.Lease, name: str, sequence: int) -> None:
    """Read, take a moment, write what was computed: the pattern that a stale holder breaks."""
    with guard.transaction(lease) as connection:
        (value,) = connection.execute("SELECT value FROM counter").fetchone()
    time.sleep(random.uniform(0, 0.004))
    with guard.transaction(lease) as connection:
        connection.execute("UPDATE counter SET value = ?", (value + 1,))
        connection.execute(
            "INSERT INTO history (value, worker, sequence, token) VALUES (?, ?, ?, ?)",
            (value + 1, name, sequence, lease.token),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
