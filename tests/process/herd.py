"""Processes that start at the same moment: `herd.py '{"url": …, "count": 32, "turns": 3}'`.

Each child acquires and releases the lock `turns` times and prints a line "<source id> <token>" each time, or the error.
With `"reopens": true` it opens and closes the source for each turn, as short-lived programs do; with `"threads": n` it
does so in n threads. `boot_id`: the kernel that they are to believe in.
"""

import json
import os
import sys
import threading
from typing import Any

import fencelock
from fencelock.stores.sqlite.connection.file_identity import this_kernel
from fencelock.stores.sqlite.source import identity
from fencelock.stores.sqlite.source import store as source


def take(connected: fencelock.Source) -> None:
    """Acquire and release, and print the token."""
    with connected.lock("lock", ttl=60, timeout=60) as lease:
        line = f"{lease.sequencer.source_id} {lease.token}\n"
    os.write(1, line.encode())


def live(settings: dict[str, Any]) -> None:
    """Take the lock the given number of times."""
    try:
        if settings.get("reopens"):
            for _ in range(settings["turns"]):
                with fencelock.connect(settings["url"]) as connected:
                    take(connected)
            return
        with fencelock.connect(settings["url"]) as connected:
            for _ in range(settings["turns"]):
                take(connected)
    except BaseException as error:
        os.write(1, f"{error!r}\n".encode())
        raise


def child(settings: dict[str, Any], start: int) -> None:
    """Wait for the start, and live."""
    os.read(start, 1)
    threads = [threading.Thread(target=live, args=[settings]) for _ in range(settings.get("threads", 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Fork them all, let them start together, and wait for the last."""
    settings = json.loads(sys.argv[1])
    if "boot_id" in settings:
        kernel = this_kernel()._replace(boot_id=settings["boot_id"], machine_id="0" * 32)
        identity.this_kernel = source.this_kernel = lambda: kernel  # type: ignore[assignment]
    start, started = os.pipe()
    for _ in range(settings["count"]):
        if os.fork() == 0:
            os.close(started)
            child(settings, start)
            return
    os.close(started)
    for _ in range(settings["count"]):
        os.wait()


if __name__ == "__main__":
    main()
