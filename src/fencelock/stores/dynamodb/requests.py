"""What a store asks DynamoDB, as values: reads are asked again, because they change nothing.

Each generator yields `Call`s and `Pause`s, and is sent the answers.

Promise: every read is strongly consistent. A read is repeated for PATIENCE_S at most, by a clock that counts suspend.
Never: a write sent twice here.
"""

from collections.abc import Sequence
from typing import Any

from fencelock.clock import boottime_ms
from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.stores.aws.clients import Call, Calls, Refusal
from fencelock.stores.aws.errors import doubt_of
from fencelock.stores.pauses import Pause, growing_pauses

REQUEST_TIMEOUT_S = 5.0
"""How long one request waits for its reply."""
PATIENCE_S = 15.0
"""How long it is asked again. DynamoDB ends a transaction that was interrupted when it is asked 5 s later."""
MAX_KEYS = 100
"""In one BatchGetItem."""
BUSY = frozenset({"ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException"})
"""Refusals that pass."""
_MS_PER_S = 1000


class Patience:
    """How long to go on asking, and how long to wait between."""

    def __init__(self, limit_s: float | None = None) -> None:
        self._until_ms = boottime_ms() + int((PATIENCE_S if limit_s is None else limit_s) * _MS_PER_S)
        self._pauses = growing_pauses()

    def next_pause(self) -> Pause | None:
        """Return the pause before the next try; None if the time is over then."""
        pause = next(self._pauses)
        return None if self._left_ms() <= pause.seconds * _MS_PER_S else pause

    def is_over(self) -> bool:
        """Return whether the time is over: a process may be frozen in a pause."""
        return self._left_ms() <= 0

    def _left_ms(self) -> int:
        return self._until_ms - boottime_ms()


def read(operation: str, arguments: dict[str, Any], expects: frozenset[str] = frozenset()) -> Calls[Any]:
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
            doubt = doubt_of(error)
        if (pause := patience.next_pause()) is None:
            raise SourceUnavailableError(f"DynamoDB did not answer a read ({doubt}): nothing was done. Try again")
        yield pause


def get_items(table: str, keys: Sequence[dict[str, Any]]) -> Calls[list[dict[str, Any]]]:
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


def read_pages(operation: str, arguments: dict[str, Any], limit: int | None = None) -> Calls[list[dict[str, Any]]]:
    """Return the items of a Query or a Scan, of all its pages; `limit` of them at most."""
    found: list[dict[str, Any]] = []
    more: dict[str, Any] = {"ConsistentRead": True}
    while True:
        answer = yield from read(operation, arguments | more)
        found += answer["Items"]
        if "LastEvaluatedKey" not in answer or (limit is not None and len(found) >= limit):
            return found if limit is None else found[:limit]
        more["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
