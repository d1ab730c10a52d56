"""What the codecs of a MySQL guard yield: the statement of one round trip, as text or as what makes it.

Promise: pure.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from fencelock.stores.mysql.connection.wire import Rows


class SeparateConnection(NamedTuple):
    """A statement for a second connection: DDL would commit the transaction of the first."""

    text: str


MaskedTrip = str | Callable[[int | None], str]
"""A statement, or what makes it for the connection of a number, for which it masks claims and proofs."""
Trip = MaskedTrip | SeparateConnection
Trips = Generator[Trip, list[Rows], Any]
"""Yields round trips, and is sent the rows of each result of each."""


def text_of(trip: MaskedTrip, native: Any) -> str:
    """Return the statement of a round trip over a client library's connection."""
    if isinstance(trip, str):
        return trip
    number = getattr(native, "thread_id", None)
    if number is None:
        number = getattr(native, "connection_id", None)
    if callable(number):
        number = number()
    return trip(number if isinstance(number, int) else None)
