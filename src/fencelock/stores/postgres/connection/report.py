"""What a PostgreSQL server said in an error, whichever client of Python carried it.

Promise: the five-character state, the message, the hint and the detail, from the exceptions of psycopg, psycopg2,
asyncpg and pg8000; None for anything that no server said. Never: a client imported.
"""

import re
from typing import Any, NamedTuple

_STATE = re.compile(r"[0-9A-Z]{5}")


class PostgresReport(NamedTuple):
    """A server's error."""

    state: str
    message: str
    hint: str | None
    detail: str | None


def report_of(error: BaseException) -> PostgresReport | None:
    """Return what the server said; None if the exception is no server's error."""
    known: Any = error
    state = getattr(known, "sqlstate", None) or getattr(known, "pgcode", None)
    fields = known.args[0] if known.args and isinstance(known.args[0], dict) else {}
    state = state or fields.get("C")
    if not isinstance(state, str) or not _STATE.fullmatch(state):
        return None
    if hasattr(known, "diag"):
        said = known.diag
        return PostgresReport(state, said.message_primary or str(error), said.message_hint, said.message_detail)
    message = getattr(known, "message", None) or fields.get("M") or str(error)
    hint = getattr(known, "hint", None) or fields.get("H")
    return PostgresReport(state, message, hint, getattr(known, "detail", None) or fields.get("D"))
