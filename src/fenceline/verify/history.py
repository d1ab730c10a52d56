"""A history: what every process asked for, what it was told, and what was done to it meanwhile.

The words are Jepsen's. A process *invokes* an operation, which ends as *ok* (it happened), *fail* (it certainly did
not) or *info* (it may have, now or later); an operation without an end counts as info. One JSON object a line, in the
order of `time`, nanoseconds on one clock that all processes of the machine share. docs/reference/history.md has every
field.

Promise: a file that breaks this form is refused with the number of its line, never judged in part. Tokens are decimal
strings in the file, and integers here.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fenceline.errors import ConfigError

FORMAT = 1
INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"
ACQUIRE, RELEASE, READ, WRITE, STRAY = "acquire", "release", "read", "write", "stray"
OPERATIONS = (ACQUIRE, RELEASE, READ, WRITE, STRAY)
BEGIN, FINAL, QUIET = "begin", "final", "quiet"
FREEZE, THAW, KILL = "freeze", "thaw", "kill"
PARTITION, DELAY, DROP = "partition", "delay", "drop"
RESTORE = "restore"
JUMP = "jump"
SERVER_KILL, SERVER_FREEZE, SERVER_RESTART = "server-kill", "server-freeze", "server-restart"
SERVER_ISOLATE, SERVER_RESTORE, SERVER_BACK = "server-isolate", "server-restore", "server-back"
SERVER_FAULTS = (SERVER_KILL, SERVER_FREEZE, SERVER_RESTART, SERVER_ISOLATE, SERVER_RESTORE)
SERVER_EVENTS = (*SERVER_FAULTS, SERVER_BACK)
"""What is done to the servers that a campaign started itself; the last ends each of the others."""
NEMESIS = "nemesis"
NS_PER_S = 1_000_000_000


class HistoryError(ConfigError):
    """A file is no history: the message says which line, and why."""


@dataclass(slots=True)
class Operation:
    """One operation of one process. Fields that do not apply are None; `place` is the lock or the resource.

    `until_ns` is the time until which the process relied on its lease when it was told the outcome. `position` is how
    many writes a read has seen, or, of a write, that number plus one. `mark` is what a refusal named.
    """

    process: str
    kind: str
    place: str
    invoked_ns: int
    completed_ns: int | None = None
    outcome: str = INFO
    token: int | None = None
    write: str | None = None
    position: int | None = None
    until_ns: int | None = None
    mark: int | None = None
    error: str | None = None

    @property
    def ended_ns(self) -> float:
        """When it was over: never, if nobody was told."""
        return float("inf") if self.completed_ns is None or self.outcome == INFO else self.completed_ns


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was done to the processes, or a moment of the campaign."""

    time_ns: int
    kind: str
    facts: dict[str, Any]

    @property
    def victim(self) -> str | None:
        """The process that it was done to, if it was one."""
        return self.facts.get("victim")


@dataclass(frozen=True, slots=True)
class Row:
    """One write as the final state of a resource has it."""

    write: str
    position: int
    token: int


@dataclass(frozen=True, slots=True)
class Final:
    """A resource's state when everybody had ended: its writes in the order of their commits, and its counter."""

    rows: tuple[Row, ...]
    counter: int


@dataclass(slots=True)
class History:
    """Everything that happened, in the order of its beginnings."""

    settings: dict[str, Any] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    finals: dict[str, Final] = field(default_factory=dict)
    end_ns: int = 0
    lines: int = 0

    @property
    def ttl_ns(self) -> int:
        """The length of the leases, in nanoseconds."""
        return int(float(self.settings["ttl"]) * NS_PER_S)

    def by_place(self, *kinds: str) -> dict[str, list[Operation]]:
        """Return the operations of these kinds by their lock or resource."""
        found: dict[str, list[Operation]] = {}
        for operation in self.operations:
            if operation.kind in kinds:
                found.setdefault(operation.place, []).append(operation)
        return found

    def restores(self, resource: str) -> list[tuple[int, int]]:
        """Return when the resource went back in time, and to how many writes."""
        found = [one for one in self.events if one.kind == RESTORE and one.facts["resource"] == resource]
        return [(one.time_ns, int(one.facts["position"])) for one in found]

    def raised_marks(self, resource: str) -> list[tuple[int, int]]:
        """Return when the resource's mark was raised after a restore, and to which token."""
        found = [one for one in self.events if one.kind == RESTORE and one.facts["resource"] == resource]
        return [(one.time_ns, int(one.facts["mark"])) for one in found if "mark" in one.facts]

    def lock_of(self, resource: str) -> str | None:
        """Return the lock whose holder may write to the resource, if the history says so."""
        lock: str | None = self.settings.get("resources", {}).get(resource)
        return lock


class Reader:
    """Takes up a history line by line."""

    def __init__(self) -> None:
        self.history = History()
        self._open: dict[str, Operation] = {}

    def take(self, line: str | bytes) -> None:
        """Take up the next line; HistoryError if it cannot be one."""
        history = self.history
        history.lines += 1
        try:
            record = json.loads(line)
            time_ns, kind, step = int(record["time"]), record["f"], record["type"]
            if time_ns < history.end_ns:
                self._refuse(f"its time {time_ns} is before that of the line above, {history.end_ns}")
            history.end_ns = time_ns
            if history.lines == 1:
                self._begin(kind, record)
            elif kind in OPERATIONS:
                self._step(step, kind, time_ns, record)
            elif kind == FINAL:
                history.finals[record["resource"]] = _final_of(record)
            else:
                history.events.append(_event_of(record))
        except HistoryError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._refuse(f"{type(error).__name__}: {error}")

    def _begin(self, kind: str, record: dict[str, Any]) -> None:
        if kind != BEGIN or record.get("format") != FORMAT or float(record["ttl"]) <= 0:
            self._refuse(f"a history begins with f {BEGIN!r}, format {FORMAT} and the ttl")
        self.history.settings = record

    def _step(self, step: str, kind: str, time_ns: int, record: dict[str, Any]) -> None:
        process = sys.intern(record["process"])
        if step == INVOKE:
            if process in self._open:
                self._refuse(f"process {process} invokes {kind} before its {self._open[process].kind} has ended")
            place = sys.intern(record["lock"] if kind in {ACQUIRE, RELEASE} else record["resource"])
            operation = Operation(process, sys.intern(kind), place, time_ns)
            _learn(operation, record)
            self._open[process] = operation
            self.history.operations.append(operation)
            return
        begun = self._open.pop(process, None)
        if begun is None or begun.kind != kind or step not in {OK, FAIL, INFO}:
            self._refuse(f"process {process} has no open {kind} that could end as {step!r}")
        begun.completed_ns = time_ns
        begun.outcome = sys.intern(step)
        _learn(begun, record)

    def _refuse(self, reason: str) -> NoReturn:
        raise HistoryError(f"line {self.history.lines} is not of a history: {reason}")


def _learn(operation: Operation, record: dict[str, Any]) -> None:
    get = record.get
    if (token := get("token")) is not None:
        operation.token = int(token)
    if (until := get("until")) is not None:
        operation.until_ns = int(until)
    if (position := get("position")) is not None:
        operation.position = int(position)
    if (write := get("write")) is not None:
        operation.write = write
    if (mark := get("mark")) is not None:
        operation.mark = int(mark)
    if (error := get("error")) is not None:
        operation.error = sys.intern(error)


def _event_of(record: dict[str, Any]) -> Event:
    facts = {key: value for key, value in record.items() if key not in {"time", "f", "type", "process"}}
    return Event(int(record["time"]), record["f"], facts)


def _final_of(record: dict[str, Any]) -> Final:
    rows = tuple(Row(write, int(position), int(token)) for write, position, token in record["rows"])
    return Final(rows, int(record["counter"]))


def read_history(lines: Iterable[str | bytes]) -> History:
    """Return the history that the lines tell; HistoryError if they tell none."""
    reader = Reader()
    for line in lines:
        reader.take(line)
    if not reader.history.lines:
        raise HistoryError("the file is empty: no history")
    return reader.history
