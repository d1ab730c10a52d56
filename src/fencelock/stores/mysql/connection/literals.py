"""Values as literals of MySQL's SQL that mean the same in every mode of the server and every character set.

Promise: nothing of a value stands in a statement but digits: texts are hexadecimal, so that no quote, backslash or
percent sign of theirs can be misread by a server or by a client. Identifiers are quoted by backticks, which every mode
has.
"""

from typing import Any


def literal(value: str | bytes | int | None) -> str:
    """Return one value: NULL, a number, or hexadecimal digits."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    return f"x'{(value.encode() if isinstance(value, str) else value).hex()}'"


def literals(values: dict[str, Any]) -> dict[str, str]:
    """Return each value as a literal."""
    return {name: literal(value) for name, value in values.items()}


def quoted(identifier: str) -> str:
    """Return an identifier as SQL has it."""
    return "`" + identifier.replace("`", "``") + "`"
