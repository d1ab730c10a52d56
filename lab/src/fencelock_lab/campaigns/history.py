"""A history: what every process asked for, what it was told, and what was done to it meanwhile.

The words are Jepsen's. A process *invokes* an operation, which ends as *ok* (it happened), *fail* (it certainly did
not) or *info* (it may have, now or later); an operation without an end counts as info. One JSON object a line, in the
order of `time`, nanoseconds on one clock that all processes of the machine share. docs/reference/history.md has every
field.

Promise: a file that breaks this schema is refused with the number of its line, and never judged in part: a line that
lacks what a rule needs would pass as one that keeps the rule. Tokens are decimal strings in the file and integers here.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fencelock.errors import ConfigError
from fencelock_lab.campaigns import history_schema as schema

FORMAT = 1
INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"
ACQUIRE, RELEASE, READ, WRITE, STRAY = "acquire", "release", "read", "write", "stray"
OPERATIONS = (ACQUIRE, RELEASE, READ, WRITE, STRAY)
BEGIN, FINAL, QUIET = "begin", "final", "quiet"
FREEZE, THAW, KILL = "freeze", "thaw", "kill"
PARTITION, DELAY, DROP, CUT, LOSE = "partition", "delay", "drop", "cut", "lose"
DISTURBANCES = (PARTITION, DELAY, DROP, CUT, LOSE)
"""What is done to the network of a process: held back, slow, a reply lost, connections cut, a request lost."""
REST = "rest"
"""How many hold a lock or wait for it when all processes have ended."""
LOST = "lost"
"""A process is told that its lease is over: its callback runs."""
RESTORE = "restore"
JUMP = "jump"
SERVER_KILL, SERVER_FREEZE, SERVER_RESTART = "server-kill", "server-freeze", "server-restart"
SERVER_ISOLATE, SERVER_RESTORE, SERVER_BACK = "server-isolate", "server-restore", "server-back"
SERVER_FAULTS = (SERVER_KILL, SERVER_FREEZE, SERVER_RESTART, SERVER_ISOLATE, SERVER_RESTORE)
SERVER_EVENTS = (*SERVER_FAULTS, SERVER_BACK)
"""What is done to the servers that a campaign started itself; the last ends each of the others."""
NEMESIS = "nemesis"
NS_PER_S = 1_000_000_000
_NEEDED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((FREEZE, THAW, KILL, *DISTURBANCES), ("victim",)),
    REST: ("lock", "left"),
    LOST: ("victim", "lock"),
    JUMP: ("victim", "seconds"),
    RESTORE: ("resource", "position"),
    QUIET: ("patience",),
    **dict.fromkeys(SERVER_EVENTS, ("servers",)),
}
"""All events, with the fields that they need."""


class HistoryError(ConfigError):
    """A file is not a history: the message says which line is wrong, and why."""


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
        """When it was over: never, if its process was not told."""
        return float("inf") if self.completed_ns is None or self.outcome == INFO else self.completed_ns


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """Something that was done to the processes, or a moment of the campaign."""

    time_ns: int
    kind: str
    facts: dict[str, Any]

    @property
    def victim(self) -> str | None:
        """The process that it was done to, if it was one."""
        return self.facts.get("victim")


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One write as the final state of a resource has it."""

    write: str
    position: int
    token: int


@dataclass(frozen=True, slots=True)
class Final:
    """A resource's state when everybody had ended: its writes in the order of their commits, and its counter."""

    rows: tuple[HistoryRow, ...]
    counter: int


@dataclass(slots=True)
class History:
    """Everything that happened, in the order of its beginnings."""

    settings: dict[str, Any] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    events: list[HistoryEvent] = field(default_factory=list)
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

    @property
    def resources(self) -> list[str]:
        """All resources that were attacked."""
        return list(self.settings["resources"])

    @property
    def locks(self) -> list[str]:
        """The locks of those, each once."""
        return list(dict.fromkeys(self.settings["resources"].values()))

    def lock_of(self, resource: str) -> str | None:
        """Return the lock whose holder may write to the resource, if the history says so."""
        lock: str | None = self.settings["resources"].get(resource)
        return lock

    def beside(self, resource: str) -> list[str]:
        """Return all resources of this one's lock."""
        bindings = self.settings["resources"]
        return [other for other in bindings if bindings[other] == bindings[resource]]


_AT_RESOURCES = frozenset({READ, WRITE, STRAY})
_ONCE = (("token", schema.token), ("write", schema.text), ("position", schema.whole))
"""Fields that no later line of an operation may contradict."""
_NEEDED_IN_INVOKE: dict[str, tuple[str, ...]] = {
    RELEASE: ("token",),
    READ: ("token",),
    WRITE: ("token", "write", "position"),
}
_NEEDED_IN_OK: dict[str, tuple[str, ...]] = {ACQUIRE: ("token",), READ: ("position",)}


class Reader:
    """Takes up a history line by line."""

    def __init__(self) -> None:
        self.history = History()
        self._open: dict[str, Operation] = {}
        self._resources: dict[str, str] = {}
        self._writes: set[str] = set()
        self._is_quiet = False

    def take(self, line: str | bytes) -> None:
        """Take up the next line; HistoryError if it cannot be one."""
        self.history.lines += 1
        try:
            self._take(json.loads(line))
        except schema.HistorySchemaError as error:
            self._refuse(str(error))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._refuse(f"{type(error).__name__}: {error}")

    def _take(self, record: dict[str, Any]) -> None:
        history = self.history
        time_ns, kind, step = schema.whole("time", record["time"]), schema.text("f", record["f"]), record["type"]
        if time_ns < history.end_ns:
            raise schema.HistorySchemaError(f"its time {time_ns} is before that of the line above, {history.end_ns}")
        history.end_ns = time_ns
        if history.lines == 1:
            self._begin(kind, record)
        elif kind in OPERATIONS:
            self._step(step, kind, time_ns, record)
        elif step != INFO:
            raise schema.HistorySchemaError(f"{kind!r} is not an operation, so its type cannot be {step!r}")
        elif kind == FINAL:
            self._end(record)
        else:
            self._event(kind, time_ns, record)

    def _begin(self, kind: str, record: dict[str, Any]) -> None:
        if kind != BEGIN or record.get("format") != FORMAT or not schema.length("ttl", record.get("ttl")):
            raise schema.HistorySchemaError(f"a history begins with f {BEGIN!r}, format {FORMAT} and the ttl")
        schema.texts("faults", record.get("faults", []))
        schema.flag("fifo", record.get("fifo", False))
        schema.length("loss_within", record.get("loss_within", 0))
        self._resources = schema.bindings("resources", schema.need(record, "resources"))
        self.history.settings = record

    def _step(self, step: str, kind: str, time_ns: int, record: dict[str, Any]) -> None:
        process = sys.intern(record["process"])
        if step == INVOKE:
            self._invoke(process, kind, time_ns, record)
            return
        begun = self._open.pop(process, None)
        if begun is None or begun.kind != kind or step not in {OK, FAIL, INFO}:
            raise schema.HistorySchemaError(f"process {process!r} has no open {kind} that could end as {step!r}")
        if record.get(_place_of(kind), begun.place) != begun.place:
            raise schema.HistorySchemaError(f"it ends what was invoked at {begun.place!r}")
        begun.completed_ns = time_ns
        begun.outcome = sys.intern(step)
        if kind == WRITE:
            self._check_not_over(begun.place)
        _learn(begun, record)
        _check_fields(begun, _NEEDED_IN_OK if step == OK else {})

    def _invoke(self, process: str, kind: str, time_ns: int, record: dict[str, Any]) -> None:
        if process in self._open:
            still = self._open[process].kind
            raise schema.HistorySchemaError(f"process {process!r} invokes {kind} before its {still} has ended")
        operation = Operation(process, sys.intern(kind), sys.intern(record[_place_of(kind)]), time_ns)
        _learn(operation, record)
        _check_fields(operation, _NEEDED_IN_INVOKE)
        if kind in _AT_RESOURCES:
            self._check_bound(operation.place)
        if operation.write is not None:
            self._check_write(operation)
        self._open[process] = operation
        self.history.operations.append(operation)

    def _check_bound(self, resource: str) -> None:
        if resource not in self._resources:
            raise schema.HistorySchemaError(f"the first line has no lock of resource {resource!r}")

    def _check_write(self, operation: Operation) -> None:
        if operation.write in self._writes:
            raise schema.HistorySchemaError(f"a write {operation.write!r} was invoked before")
        self._check_not_over(operation.place)
        self._writes.add(operation.write or "")

    def _check_not_over(self, resource: str) -> None:
        if resource in self.history.finals:
            raise schema.HistorySchemaError(f"the final state of resource {resource!r} is given before this line")

    def _event(self, kind: str, time_ns: int, record: dict[str, Any]) -> None:
        if kind not in _NEEDED:
            raise schema.HistorySchemaError(f"there is no event of the name {kind!r}")
        schema.check_event(record, _NEEDED[kind])
        if kind == RESTORE:
            self._check_bound(record["resource"])
        if kind == QUIET and self._is_quiet:
            raise schema.HistorySchemaError("there is a second 'quiet'")
        self._is_quiet |= kind == QUIET
        facts = {key: value for key, value in record.items() if key not in {"time", "f", "type", "process"}}
        self.history.events.append(HistoryEvent(time_ns, kind, facts))

    def _end(self, record: dict[str, Any]) -> None:
        resource = schema.text("resource", record["resource"])
        self._check_bound(resource)
        self._check_not_over(resource)
        self.history.finals[resource] = _final_of(record)

    def _refuse(self, reason: str) -> NoReturn:
        raise HistoryError(f"line {self.history.lines} is not valid: {reason}")


def _place_of(kind: str) -> str:
    return "resource" if kind in _AT_RESOURCES else "lock"


def _learn(operation: Operation, record: dict[str, Any]) -> None:
    get = record.get
    for what, kind in _ONCE:
        if (value := get(what)) is not None:
            said, known = kind(what, value), getattr(operation, what)
            if known is not None and known != said:
                raise schema.HistorySchemaError(f"its {what} is not that of its invoke")
            setattr(operation, what, said)
    if (until := get("until")) is not None:
        operation.until_ns = schema.whole("until", until)
    if (mark := get("mark")) is not None:
        operation.mark = schema.whole("mark", mark)
    if (error := get("error")) is not None:
        operation.error = sys.intern(error)


def _check_fields(operation: Operation, needed: dict[str, tuple[str, ...]]) -> None:
    for what in needed.get(operation.kind, ()):
        if getattr(operation, what) is None:
            raise schema.HistorySchemaError(f"the {operation.kind} lacks {what!r}")


def _final_of(record: dict[str, Any]) -> Final:
    if not isinstance(record["rows"], list):
        raise schema.HistorySchemaError("its rows are not a list")
    rows = tuple(
        HistoryRow(schema.text("write", write), schema.whole("position", position), schema.token("token", token))
        for write, position, token in record["rows"]
    )
    # An accepted write without a token may take more from the counter than is in it.
    return Final(rows, schema.whole("counter", record["counter"], least=-schema.LARGEST))


def read_history(lines: Iterable[str | bytes]) -> History:
    """Return the history that the lines tell; HistoryError if they are not one."""
    reader = Reader()
    for line in lines:
        reader.take(line)
    if not reader.history.lines:
        raise HistoryError("the file is empty: it holds no history")
    return reader.history
