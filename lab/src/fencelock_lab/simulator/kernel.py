"""Virtual time, processes and tasks: the kernel decides what runs when, and which process is frozen or dead.

Promise: one seed gives one history. One generator draws everything random, events at the same time run in the order
in which they were planned, and the kernel reads no real clock, thread or hash order. The kernel can freeze or kill a
process at every yield of every task in it, between the arrival of a reply and its use.
"""

import heapq
import random
from collections.abc import Callable, Generator
from itertools import count
from typing import Any, NamedTuple

US_PER_MS = 1000
CALENDAR_S = 1_800_000_000
"""When a world begins, in seconds since 1970."""
START_US = 1_000_000_000
Action = Callable[..., None]


class Violation(AssertionError):  # noqa: N818 - it names a finding, not a caller's mistake.
    """A rule was broken; the message says which rule, and what broke it."""


class Sleep(NamedTuple):
    """A request of a task to let time pass. Reply: None."""

    duration_us: int


class Line(NamedTuple):
    """One line of a trace."""

    at_us: int
    who: str
    what: str

    def __str__(self) -> str:
        return f"{(self.at_us - START_US) / US_PER_MS:11.3f} ms  {self.who:<8} {self.what}"


class SimulatedKernel:
    """The clock, the plan of events, and the trace."""

    def __init__(self, seed: int, *, is_tracing: bool) -> None:
        self.random = random.Random(seed)  # noqa: S311 - it must be reproducible.
        self.now_us = START_US
        self.steps = 0
        self.lines: list[Line] = []
        self.is_tracing = is_tracing
        self._plan: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._numbers = count()

    @property
    def now_ms(self) -> int:
        """The time in milliseconds, rounded down."""
        return self.now_us // US_PER_MS

    @property
    def calendar_s(self) -> int:
        """Seconds since 1970 on each calendar: a minute passes in every microsecond, so histories lie apart (T7)."""
        return CALENDAR_S + 60 * (self.now_us - START_US)

    def at(self, when_us: int, action: Action, *arguments: Any) -> None:
        """Plan an action."""
        heapq.heappush(self._plan, (max(when_us, self.now_us), next(self._numbers), action, arguments))

    def after(self, delay_us: int, action: Action, *arguments: Any) -> None:
        """Plan an action after a delay."""
        heapq.heappush(self._plan, (self.now_us + delay_us, next(self._numbers), action, arguments))

    def run(self, until_us: int) -> None:
        """Run the actions planned up to this time, then set the clock to it."""
        plan = self._plan
        while plan and plan[0][0] <= until_us:
            self.now_us, _, action, arguments = heapq.heappop(plan)
            self.steps += 1
            action(*arguments)
        self.now_us = until_us

    def trace(self, who: str, what: str, *details: object) -> None:
        """Add a line to the trace; format `what` with the details only if tracing is on."""
        if self.is_tracing:
            self.lines.append(Line(self.now_us, who, what.format(*details)))

    def chance(self, probability: float) -> bool:
        """Draw whether something happens."""
        return probability > 0.0 and self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        """Draw a number, both ends included."""
        return low + int(self.random.random() * (high - low + 1))


class Computer:
    """The odds that a process freezes or crashes at each step."""

    def __init__(self, kernel: SimulatedKernel) -> None:
        self.kernel = kernel
        self.freeze_odds = 0.0
        self.crash_odds = 0.0
        self.longest_freeze_ms = 1


class SimulatedProcess:
    """A group of tasks that freeze together and die together."""

    def __init__(self, computer: Computer, name: str) -> None:
        self.computer = computer
        self.kernel = computer.kernel
        self.name = name
        self.frozen_until_us = 0
        self.is_dead = False
        self.at_death: list[Action] = []

    def freeze(self, duration_ms: int) -> None:
        """Stop all tasks of this process for a while."""
        self.kernel.trace(self.name, "is frozen for {} ms", duration_ms)
        self.frozen_until_us = self.kernel.now_us + duration_ms * US_PER_MS

    def kill(self) -> None:
        """Stop this process for good; the messages that it has sent stay in flight."""
        if not self.is_dead:
            self.kernel.trace(self.name, "is killed")
            self.is_dead = True
            for action in self.at_death:
                action()

    def is_struck(self) -> bool:
        """Draw whether the process dies or freezes at this step; return whether it is dead."""
        computer, kernel = self.computer, self.kernel
        if kernel.chance(computer.freeze_odds) and kernel.now_us >= self.frozen_until_us:
            self.freeze(kernel.between(1, computer.longest_freeze_ms))
        if kernel.chance(computer.crash_odds):
            self.kill()
        return self.is_dead

    def start(self, body: Generator[Any, Any, None], answer: "Answer") -> None:
        """Start a task; `answer` answers its requests."""
        Task(self, body, answer).reply(0, 0, None)


class Pending:
    """The result of `answer` when the reply comes later, through `Task.reply`."""


PENDING = Pending()
Answer = Callable[["Task", Any], Any]


class Task:
    """One generator of a process. It accepts only the reply to its latest request."""

    __slots__ = ("_answer", "body", "process", "ticket")

    def __init__(self, process: SimulatedProcess, body: Generator[Any, Any, None], answer: Answer) -> None:
        self.process = process
        self.ticket = 0
        self.body = body
        self._answer = answer

    def reply(self, ticket: int, delay_us: int, value: Any) -> None:
        """Resume with a value, or throw an exception, after a delay, unless another reply arrives first."""
        self.process.kernel.after(delay_us, self._arrive, ticket, value)

    def put_between(self, body: Generator[Any, Any, None]) -> None:
        """Replace this task's generator by a wrapper, which runs the old generator and has its pending request."""
        self.body = body
        self.reply(self.ticket, 0, None)

    def _arrive(self, ticket: int, value: Any) -> None:
        if ticket == self.ticket:
            self.ticket += 1  # Accept this reply; a later reply finds another ticket and is dropped.
            self._go_on(value)

    def _go_on(self, value: Any) -> None:
        """Run the task until it must wait; its process may freeze or die before every step."""
        process, kernel = self.process, self.process.kernel
        while value is not PENDING and not process.is_dead:
            if process.is_struck():
                return
            if kernel.now_us < process.frozen_until_us:
                kernel.at(process.frozen_until_us, self._go_on, value)
                return
            try:
                request = self.body.throw(value) if isinstance(value, BaseException) else self.body.send(value)
            except StopIteration:
                return
            value = self._answer(self, request)
