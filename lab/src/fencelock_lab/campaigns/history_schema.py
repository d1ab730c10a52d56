"""What the fields of a history must be.

Promise: what passes here can be judged to the end. Names are text, whole numbers fit into 64 bits, seconds are finite.
"""

from collections.abc import Callable
from typing import Any

LARGEST = 2**63 - 1
_LARGEST_S = LARGEST // 1_000_000_000


class HistorySchemaError(ValueError):
    """A line lacks a field, or a field has the wrong type."""


def text(what: str, value: Any) -> str:
    """Return a name."""
    if not isinstance(value, str):
        raise HistorySchemaError(f"its {what} is not text")
    return value


def whole(what: str, value: Any, least: int = 0) -> int:
    """Return a whole number, which may be written as a decimal string."""
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
        raise HistorySchemaError(f"its {what} is not a whole number from {least} to {LARGEST}")
    return value


def token(what: str, value: Any) -> int:
    """Return a token: the first one of a source is 1."""
    return whole(what, value, least=1)


def seconds(what: str, value: Any) -> float:
    """Return a number of seconds, which may be below 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_S:
        raise HistorySchemaError(f"its {what} is not a number of seconds")
    return float(value)


def length(what: str, value: Any) -> float:
    """Return how many seconds something lasts."""
    if seconds(what, value) < 0:
        raise HistorySchemaError(f"its {what} is below 0")
    return float(value)


def flag(what: str, value: Any) -> bool:
    """Return a yes or no."""
    if not isinstance(value, bool):
        raise HistorySchemaError(f"its {what} is neither true nor false")
    return value


def texts(what: str, value: Any) -> list[str]:
    """Return a list of names."""
    if not isinstance(value, list):
        raise HistorySchemaError(f"its {what} is not a list")
    return [text(what, one) for one in value]


def bindings(what: str, value: Any) -> dict[str, str]:
    """Return names by names."""
    if not isinstance(value, dict):
        raise HistorySchemaError(f"its {what} is not an object")
    return {name: text(what, one) for name, one in value.items()}


_FIELDS: dict[str, Callable[[str, Any], object]] = {
    "victim": text,
    "resource": text,
    "side": text,
    "point": text,
    "position": whole,
    "mark": whole,
    "seconds": seconds,
    "patience": length,
    "forgets": length,
    "overlap": length,
    "lock": text,
    "left": whole,
    "servers": texts,
}


def check_event(record: dict[str, Any], needed: tuple[str, ...]) -> None:
    """Raise HistorySchemaError unless an event has the fields that it needs, and each of its fields is valid."""
    for what in needed:
        need(record, what)
    for what, value in record.items():
        if what in _FIELDS:
            _FIELDS[what](what, value)


def need(record: dict[str, Any], what: str) -> Any:
    """Return a field; HistorySchemaError if the line has none."""
    if record.get(what) is None:
        raise HistorySchemaError(f"it lacks {what!r}")
    return record[what]
