"""One of the two processes of an act: `python -m fencelock_lab.demo.worker`.

Promise: it adds its amount to the counter under the lock, as an honest program would, and stops
before each of its lines until its standard input says to go on. It reports where it stands
and what has happened, one JSON object a line, on its standard output. It ends when its input ends.
Never: a look at what the other process does, or at which act is being played.
"""

import json
import sys
import time
from pathlib import Path

import fencelock
from fencelock_lab.demo.resources import LOCK, RESOURCES, DemoResource

TRIES = 3
"""How often a worker whose write was refused acquires the lock again before it gives up."""


def main(kind: str, folder: Path, amount: int, ttl: float) -> None:
    """Add `amount` to the counter in `folder`, under the lock there; `ttl` is in seconds."""
    resource = RESOURCES[kind](folder / "app.db")
    with fencelock.connect(f"sqlite:///{folder / 'locks.db'}") as source:
        lock = source.lock(LOCK, ttl=ttl)
        for _ in range(TRIES):
            if _add(lock, resource, amount):
                break
    _tell("done")


def _add(lock: fencelock.Lock, resource: DemoResource, amount: int) -> bool:
    """Add `amount` in one tenure; return False if the resource refused the write."""
    _stand_before("acquire")
    _tell("asked")
    lease = lock.acquire()
    if lease is None:
        raise RuntimeError("an acquire without a timeout returned nothing")
    # A lease would say LeaseExpiredError by its own clock. Its sequencer cannot, and stands for
    # a holder that is frozen after its last look at the clock: there is always such a moment.
    sequencer = lease.sequencer
    _tell("acquired", token=sequencer.token)
    try:
        _stand_before("read")
        value = resource.read(sequencer)
        _tell("read", token=sequencer.token, value=value, is_valid=lease.is_valid)
        _stand_before("write")
        return _write(resource, sequencer, value + amount, amount)
    finally:
        lease.release()
        _tell("released", token=sequencer.token)


def _write(resource: DemoResource, sequencer: fencelock.Sequencer, value: int, amount: int) -> bool:
    try:
        resource.write(sequencer, value)
    except fencelock.StaleTokenError as error:
        _tell("refused", token=error.token, mark=error.mark, value=value, reason=str(error))
        return False
    _tell("accepted", token=sequencer.token, value=value, amount=amount)
    return True


def _stand_before(line: str) -> None:
    _tell("stands", line=line)
    if not sys.stdin.readline():
        raise SystemExit("the conductor has gone")


def _tell(name: str, **facts: object) -> None:
    print(json.dumps({"name": name, "time": time.monotonic(), **facts}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
