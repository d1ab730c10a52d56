"""A request that passes a proxy, and what is to happen to it.

Promise: a fault happens at most once, and says when it has.
"""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Literal

DEADLINE_S = 30.0
"""How long a request may take to come on a loaded machine."""

FaultKind = Literal["drop request", "drop reply", "hold request", "hold reply"]


class RequestFault:
    """What is to happen to one request."""

    def __init__(self, kind: FaultKind, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        self._loop = loop
        self._happened = threading.Event()
        self._released = asyncio.Event()

    @property
    def has_happened(self) -> bool:
        """Whether the request came, and was dropped or held."""
        return self._happened.is_set()

    def wait(self, timeout: float = DEADLINE_S) -> None:
        """Wait until it has happened."""
        assert self._happened.wait(timeout), f"no request came to {self.kind} within {timeout} s"

    def release(self) -> None:
        """Let what is held pass; before it has happened: hold nothing."""
        self._loop.call_soon_threadsafe(self._released.set)

    def strike(self) -> None:
        """Note that it has happened."""
        self._happened.set()

    async def hold(self) -> None:
        """Note that it has happened, and wait until it is released."""
        self._happened.set()
        await self._released.wait()


@dataclass
class Request:
    """One request as it passed. Number 0: it opens the connection, and is not counted."""

    number: int
    messages: str = ""
    """The letters of its messages; PostgreSQL's: PBDES."""
    statements: list[str] = field(default_factory=list)
    """The SQL texts in it. An execution of what was prepared earlier has none."""
    fault: RequestFault | None = None
