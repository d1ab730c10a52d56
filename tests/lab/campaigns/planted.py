"""Histories written by hand: a few lines of what each process asked and was told, in seconds."""

import json
from typing import Any

from fencelock_lab.campaigns.history import History, read_history

NS = 1_000_000_000
LOCK, RESOURCE = "l", "r"


class Script:
    """Collects operations with their times and gives them as lines in the order of time."""

    def __init__(self, ttl: float = 1.0, *, promises: dict[str, Any] | None = None, **resources: str) -> None:
        """The resources have locks of these names, or there is one of each. `promises` are what the first line says."""
        begin = {"time": 0, "process": "verify", "type": "info", "f": "begin", "format": 1, "ttl": ttl}
        self._begin = begin | {"resources": resources or {RESOURCE: LOCK}} | (promises or {})
        self._records: list[dict[str, Any]] = []

    def call(
        self, process: str, f: str, start: float, end: float | None, outcome: str = "ok", **facts: Any
    ) -> "Script":
        """Add an operation; `end` None: nobody was told."""
        place = {"lock": LOCK} if f in {"acquire", "release"} else {"resource": RESOURCE}
        common = {"process": process, "f": f} | place | facts
        self._records.append(common | {"time": round(start * NS), "type": "invoke"})
        if end is not None:
            self._records.append(common | {"time": round(end * NS), "type": outcome})
        return self

    def acquire(
        self, process: str, start: float, end: float, token: int, until: float | None = None, **facts: Any
    ) -> "Script":
        facts |= {} if until is None else {"until": round(until * NS)}
        return self.call(process, "acquire", start, end, token=str(token), **facts)

    def release(self, process: str, start: float, end: float, token: int) -> "Script":
        return self.call(process, "release", start, end, token=str(token))

    def read(self, process: str, start: float, end: float | None, token: int, position: int, **facts: Any) -> "Script":
        return self.call(process, "read", start, end, token=str(token), position=position, **facts)

    def write(
        self, process: str, start: float, end: float | None, token: int, name: str, position: int, **facts: Any
    ) -> "Script":
        return self.call(process, "write", start, end, token=str(token), write=name, position=position, **facts)

    def event(self, at: float, f: str, **facts: Any) -> "Script":
        self._records.append({"time": round(at * NS), "process": "nemesis", "type": "info", "f": f} | facts)
        return self

    def restore(self, at: float, position: int, resource: str = RESOURCE) -> "Script":
        return self.event(at, "restore", resource=resource, position=position)

    def final(self, *rows: tuple[str, int, int], counter: int | None = None, at: float = 90.0) -> "Script":
        """Add the final state: the writes' names, positions and tokens."""
        listed = [[name, position, str(token)] for name, position, token in rows]
        counted = len(rows) if counter is None else counter
        facts = {"resource": RESOURCE, "rows": listed, "counter": counted}
        self._records.append({"time": round(at * NS), "process": "verify", "type": "info", "f": "final"} | facts)
        return self

    def lines(self) -> list[str]:
        self._records.sort(key=lambda one: one["time"])
        return [json.dumps(one) for one in (self._begin, *self._records)]

    def history(self) -> History:
        return read_history(self.lines())


def two_tenures() -> Script:
    """Two processes, one after the other, each with a read and a write: nothing is wrong."""
    script = Script()
    script.acquire("1", 1.0, 1.1, 10, until=2.0).read("1", 1.1, 1.2, 10, 0).write("1", 1.3, 1.4, 10, "a", 1)
    script.release("1", 1.5, 1.6, 10)
    script.acquire("2", 1.0, 1.7, 11, until=2.6).read("2", 1.7, 1.8, 11, 1).write("2", 1.8, 1.9, 11, "b", 2)
    return script.release("2", 1.9, 2.0, 11)


def stale_writer() -> Script:
    """Process 1 is frozen past its lease between its read and its write, which is for tests to add."""
    script = Script()
    script.acquire("1", 1.0, 1.1, 10, until=2.0).read("1", 1.1, 1.2, 10, 0)
    script.event(1.25, "freeze", victim="1").event(2.9, "thaw", victim="1")
    script.acquire("2", 1.5, 2.1, 11, until=3.0).read("2", 2.2, 2.3, 11, 0)
    return script


def two_resources() -> Script:
    """As before, with two resources: process 1 has read both, and process 2 the first; then process 1 wakes up."""
    script = Script(r=LOCK, q=LOCK)
    script.acquire("1", 1.0, 1.1, 10, until=2.0).read("1", 1.1, 1.2, 10, 0).read("1", 1.2, 1.22, 10, 0, resource="q")
    script.event(1.25, "freeze", victim="1").event(2.4, "thaw", victim="1")
    return script.acquire("2", 1.5, 2.1, 11, until=3.0).read("2", 2.2, 2.3, 11, 0)
