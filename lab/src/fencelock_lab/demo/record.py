"""What a played act leaves behind: its events, the counter at the end, and the verdict on them.

Promise: every verdict is computed from two things only, the processes' own reports of accepted
writes and the value found in the database afterwards. Never uses a number or a name that the script of
an act knew beforehand. Times are seconds since the act began.
"""

from dataclasses import dataclass, fields
from typing import Any

from fencelock_lab.demo.acts import Act


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """Something that happened in an act. Fields that do not apply are None.

    asked, acquired, read, accepted, refused, released: told by a process; `is_valid` is what its
    lease said of itself after the read. frozen, thawed: done to it; `seconds` is the time left of
    its lease by the source's clock, or the length of its freeze. state: the counter and the mark,
    read from the database after a process has moved.
    """

    time: float
    name: str
    process: str | None = None
    token: int | None = None
    value: int | None = None
    amount: int | None = None
    mark: int | None = None
    seconds: float | None = None
    is_valid: bool | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that apply; tokens as decimal strings, since JSON readers round."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        for key in ("token", "mark"):
            if data[key] is not None:
                data[key] = str(data[key])
        for key in ("time", "seconds"):
            if data[key] is not None:
                data[key] = round(data[key], 4)
        return {key: value for key, value in data.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ActRecord:
    """One played act: what happened, and what the counter said when all processes had ended."""

    act: Act
    events: tuple[DemoEvent, ...]
    final: int

    @property
    def additions(self) -> tuple[tuple[str, int], ...]:
        """Who was told that which amount had been added, in order."""
        return tuple((event.process or "", event.amount or 0) for event in self.events if event.name == "accepted")

    @property
    def acknowledged(self) -> int:
        """The sum that the processes were told had been added."""
        return sum(amount for _, amount in self.additions)

    @property
    def lost(self) -> int:
        """The part of the acknowledged sum that the counter does not have."""
        return self.acknowledged - self.final

    @property
    def losers(self) -> tuple[str, ...]:
        """Whose acknowledged additions are missing, each once. Amounts are powers of ten."""
        amounts = dict(self.additions)
        if self.lost <= 0:
            return ()
        return tuple(name for name, amount in amounts.items() if self.lost // amount % 10)

    @property
    def refused(self) -> int:
        """How many writes the resource refused."""
        return sum(event.name == "refused" for event in self.events)

    @property
    def is_as_expected(self) -> bool:
        """True if a fenced act lost nothing, or an unfenced one lost something."""
        return self.lost == 0 if self.act.is_fenced else self.lost > 0

    @property
    def verdict(self) -> str:
        """What became of the data, in one line."""
        sums = f"{self.acknowledged} acknowledged, the counter says {self.final}"
        if self.lost > 0:
            return f"LOST {self.lost}: {sums}. {' and '.join(self.losers)} will never know."
        if self.lost < 0:
            return f"NOT ACKNOWLEDGED {-self.lost}: {sums}."
        return f"NOTHING LOST: {sums}. Stale writes refused: {self.refused}."

    def to_json(self) -> dict[str, Any]:
        """Return all of it for machines."""
        return {
            "act": self.act.number,
            "title": self.act.title,
            "is_fenced": self.act.is_fenced,
            "events": [event.to_json() for event in self.events],
            "acknowledged": self.acknowledged,
            "counter": self.final,
            "lost": self.lost,
            "losers": list(self.losers),
            "refused": self.refused,
            "verdict": self.verdict,
            "is_as_expected": self.is_as_expected,
        }


def differences(records: tuple[ActRecord, ...]) -> list[str]:
    """Return one sentence for each act whose outcome is not what it has to show."""
    return [
        f"act {record.act.number} ({record.act.title}) should have lost "
        f"{'nothing' if record.act.is_fenced else 'something'}: {record.verdict}"
        for record in records
        if not record.is_as_expected
    ]


def to_json(records: tuple[ActRecord, ...], *, ttl: float) -> dict[str, Any]:
    """Return the whole performance for machines."""
    return {
        "ttl": ttl,
        "acts": [record.to_json() for record in records],
        "differences": differences(records),
        "is_as_expected": not differences(records),
    }
