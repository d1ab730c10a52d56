"""What checkers find in a history: what broke a promise, what could not be decided, and what is worth knowing.

Promise: a violation names its rule by a word that stays the same between versions, and carries the operations that show
it, in order. Never counts information as a violation.
"""

from dataclasses import dataclass, field

from fencelock_lab.campaigns.history import Operation


@dataclass(frozen=True, slots=True)
class CampaignViolation:
    """A promise that was broken: which, where, and by what. `operations` are the ones that show it."""

    rule: str
    place: str
    message: str
    operations: tuple[Operation, ...] = ()

    @property
    def at_ns(self) -> int:
        """When the last of its operations had been answered: the earliest moment at which it could be known."""
        return max((one.completed_ns or one.invoked_ns for one in self.operations), default=0)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Something that this history cannot decide, and why."""

    rule: str
    place: str
    message: str


@dataclass(slots=True)
class Findings:
    """All that the checkers found. `information` counts what is no violation."""

    violations: list[CampaignViolation] = field(default_factory=list)
    undecided: list[Undecided] = field(default_factory=list)
    information: dict[str, int] = field(default_factory=dict)

    def blame(self, rule: str, place: str, message: str, *operations: Operation | None) -> None:
        """Note a broken promise."""
        shown = tuple(one for one in operations if one is not None)
        self.violations.append(CampaignViolation(rule, place, message, shown))

    def doubt(self, rule: str, place: str, message: str) -> None:
        """Note what could not be decided."""
        self.undecided.append(Undecided(rule, place, message))

    def count(self, what: str, times: int = 1) -> None:
        """Note something worth knowing."""
        self.information[what] = self.information.get(what, 0) + times
