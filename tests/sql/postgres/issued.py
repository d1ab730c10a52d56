"""The tokens that a test has seen a source issue, and what processes do that know a newer state than the source."""

from collections.abc import Callable

import pytest

from fencelock import SourceError
from fencelock.protocol import source_requests as ask
from tests.sql.clients import SqlClient, one_token

REMEDY = "fencelock epoch --raise"
Clients = Callable[[str], SqlClient]
"""Opens a client of the source at an address."""


class IssuedTokens:
    """Every token that any process was ever given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def note(self, token: int) -> None:
        """Note a token that was granted: it is higher than all before."""
        assert token > max(self.tokens, default=0), f"token {token} was granted after {max(self.tokens)}"
        self.tokens.append(token)

    def issue(self, url: str, count: int = 3) -> None:
        """Have so many processes issue a token each."""
        for _ in range(count):
            self.note(one_token(url, self._lock()))

    def issue_to(self, client: SqlClient) -> None:
        self.note(client.one_token(self._lock()))

    def _lock(self) -> str:
        """Return a new lock's name: of an old one, a crash may have forgotten the release."""
        return f"lock{len(self.tokens)}"

    @property
    def last(self) -> int:
        return max(self.tokens)


def epoch(url: str) -> int:
    client = SqlClient(url)
    try:
        return int(client.describe().epoch)
    finally:
        client.close()


def check_refused(client: SqlClient, message: str) -> None:
    """Assert that a client that knows a newer state is granted nothing, and told what to do."""
    for request in (
        lambda: client.acquire("lock", may_wait=True),
        lambda: client.acquire("new"),
        lambda: client.ask(ask.Break("lock", "breaker", "tester", "a test")),
    ):
        with pytest.raises(SourceError, match=message) as caught:
            request()
        assert REMEDY in str(caught.value)
        client.close()  # As the pool does with a connection that saw an error.
