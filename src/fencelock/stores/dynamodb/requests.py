"""What a store asks DynamoDB, as values, and who sends it: reads are asked again, because they change nothing.

Each generator yields `Call`s and `Pause`s, and is sent the answers.

Promise: every read is strongly consistent. Whoever asks again does so for PATIENCE_S at most, by a clock that counts
suspend.
Never: a write sent twice here.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple

from fencelock.clock import boottime_ms
from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.stores.aws.clients import AsyncAwsClient, AwsClient, Call, Refusal

Operations = Generator[Any, Any, Any]
"""Yields calls and pauses, is sent their answers, and returns a result."""
REQUEST_TIMEOUT_S = 5.0
"""How long one request waits for its reply."""
PATIENCE_S = 15.0
"""How long it is asked again. DynamoDB ends a transaction that was interrupted when it is asked 5 s later."""
MAX_KEYS = 100
"""In one BatchGetItem."""
BUSY = frozenset({"ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException"})
"""Refusals that pass."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0
_MS_PER_S = 1000


class Pause(NamedTuple):
    """Wait this long before the next request."""

    seconds: float


def sender(client: AwsClient) -> Callable[[Any], Any]:
    """Return what answers an operation in the caller's thread."""

    def send(operation: Any) -> Any:
        return time.sleep(operation.seconds) if isinstance(operation, Pause) else client.call(operation)

    return send


def async_sender(client: AsyncAwsClient) -> Callable[[Any], Awaitable[Any]]:
    """Return what answers an operation on the running loop."""

    async def send(operation: Any) -> Any:
        if isinstance(operation, Pause):
            return await asyncio.sleep(operation.seconds)
        return await client.call(operation)

    return send


class Patience:
    """How long to go on asking, and how long to wait between."""

    def __init__(self, limit_s: float | None = None) -> None:
        self._until_ms = boottime_ms() + int((PATIENCE_S if limit_s is None else limit_s) * _MS_PER_S)
        self._pauses = _pauses()

    def next_pause(self) -> Pause | None:
        """Return the pause before the next try; None if the time is over then."""
        pause = Pause(next(self._pauses))
        return None if self._left_ms() <= pause.seconds * _MS_PER_S else pause

    def is_over(self) -> bool:
        """Return whether the time is over: a process may be frozen in a pause."""
        return self._left_ms() <= 0

    def _left_ms(self) -> int:
        return self._until_ms - boottime_ms()


def _pauses() -> Iterator[float]:
    longest_s = _FIRST_PAUSE_S
    while True:
        yield random.uniform(longest_s / 2, longest_s)  # noqa: S311 - nothing secret
        longest_s = min(2 * longest_s, _LONGEST_PAUSE_S)


def read(operation: str, arguments: dict[str, Any], expects: frozenset[str] = frozenset()) -> Operations:
    """Return the answer to a request that changes nothing; ask again while DynamoDB is busy or does not answer.

    SourceUnavailableError if it is so for too long.
    """
    patience = Patience()
    while True:
        try:
            answer = yield Call(operation, arguments, BUSY | expects)
            if not isinstance(answer, Refusal) or answer.code in expects:
                return answer
            doubt = f"{answer.code}: {answer.message}"
        except OutcomeUnknownError as error:
            doubt = str(error)
        if (pause := patience.next_pause()) is None:
            raise SourceUnavailableError(f"DynamoDB did not answer a read ({doubt}): nothing was done. Try again")
        yield pause


def get_items(table: str, keys: Sequence[dict[str, Any]]) -> Operations:
    """Return the items with these keys that exist, in any order, by strongly consistent reads."""
    found: list[dict[str, Any]] = []
    left = list(keys)
    patience = Patience()
    while left:
        asked, left = left[:MAX_KEYS], left[MAX_KEYS:]
        wanted = {table: {"Keys": asked, "ConsistentRead": True}}
        answer = yield from read("batch_get_item", {"RequestItems": wanted})
        found += answer["Responses"].get(table, [])
        if unread := answer.get("UnprocessedKeys", {}).get(table, {}).get("Keys"):
            if (pause := patience.next_pause()) is None:
                raise SourceUnavailableError("DynamoDB could not read all items now: nothing was done. Try again")
            yield pause
            left = [*unread, *left]
    return found


def read_pages(operation: str, arguments: dict[str, Any], limit: int | None = None) -> Operations:
    """Return the items of a Query or a Scan, of all its pages; `limit` of them at most."""
    found: list[dict[str, Any]] = []
    more: dict[str, Any] = {"ConsistentRead": True}
    while True:
        answer = yield from read(operation, arguments | more)
        found += answer["Items"]
        if "LastEvaluatedKey" not in answer or (limit is not None and len(found) >= limit):
            return found if limit is None else found[:limit]
        more["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
