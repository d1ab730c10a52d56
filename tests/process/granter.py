"""A process that acquires and releases locks, and prints each token that it was granted: `granter.py '{"url": …}'`.

Settings, as JSON: `url`; `locks` to take in turn; `ttl` in seconds; `count`, after which it prints "done" and waits to
be killed (0: it goes on for ever; SIGTERM ends it in good order); `block`, the tokens of a reserved block; `boot_id`
and `time_namespace`, of the kernel that it is to believe in; `without`, a protection to leave out, so that a test sees
what it is for: "flush" or "skip".
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import count, islice
from typing import Any

import fencelock
from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.connection.file_identity import this_kernel
from fencelock.stores.sqlite.source import admin, identity
from fencelock.stores.sqlite.source import store as source


def pretend(settings: dict[str, Any]) -> None:
    """Change the kernel and the size of a block, for this process alone."""
    fields = {name: settings[name] for name in ("boot_id", "time_namespace") if name in settings}
    kernel = this_kernel()._replace(machine_id="0" * 32, **fields)
    identity.this_kernel = source.this_kernel = lambda: kernel  # type: ignore[assignment]
    admin.BLOCK_TOKENS = settings.get("block", admin.BLOCK_TOKENS)


def leave_out(protection: str | None) -> None:
    """Break the rule T1 in one of its two halves."""
    if protection == "flush":

        def unflushed(self: Database, body: Callable[[], Any]) -> Any:
            return self.transact(body)

        Database.transact_flushed = unflushed  # type: ignore[method-assign, assignment]
    if protection == "skip":
        assert "counter = reserved, " in identity.SQL.adopt_clock
        vars(identity.SQL)["adopt_clock"] = identity.SQL.adopt_clock.replace("counter = reserved, ", "")


def main() -> None:
    """Grant until the end, a line "<lock> <token>" each."""
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    pretend(settings)
    with fencelock.connect(settings["url"]) as connected:
        connected.install()
        leave_out(settings.get("without"))
        locks = [connected.lock(name, ttl=settings.get("ttl", 30.0)) for name in settings["locks"]]
        for turn in islice(count(), settings.get("count") or None):
            lock = locks[turn % len(locks)]
            with lock as lease:
                os.write(1, f"{lock.name} {lease.token}\n".encode())
        os.write(1, b"done\n")
        while True:  # signal.pause() would sleep on if SIGTERM came just before it.
            time.sleep(0.05)


if __name__ == "__main__":
    main()
