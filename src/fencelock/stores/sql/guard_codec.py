"""What the codecs of the two SQL guards share: the table of encoders, and the check of the schema's number.

Promise: pure. Never makes a decision about a token.
"""

from collections.abc import Callable, Generator
from typing import Any, ClassVar

from fencelock.errors import SchemaError

SCHEMA_NUMBER = 1
UNKNOWN_MS = 30_000
"""The idle limit of a guarded transaction whose lease's time left is unknown here: a lease's default ttl."""


class GuardCodecBase:
    """Encodes each request of `protocol/guard_requests.py` as a generator of round trips."""

    ENCODERS: ClassVar[dict[type, Callable[[Any, Any], Generator[Any, Any, Any]]]]

    def operations(self, request: Any) -> Generator[Any, Any, Any]:
        """Return a generator that yields each round trip, is sent its answer, and returns the reply."""
        return self.ENCODERS[type(request)](self, request)


def check_guard_schema(found: object, *, remedy: str = "") -> None:
    """Raise SchemaError unless the database has the guard schema of this version."""
    if found != SCHEMA_NUMBER:
        raise SchemaError(
            f"the database holds guard schema {found}, and this fencelock knows schema {SCHEMA_NUMBER} only: use the "
            f"version of fencelock that made it{remedy}"
        )
