"""The one transaction that writes, and how its outcome is found out: pure.

Promise: it carries a ClientRequestToken, by which DynamoDB carries it out once. After a lost reply, or an error of the
server, it is sent again with the same token until its outcome is known or PATIENCE_S is over. Once a request may still
be under way, no other token is used: the late request would be carried out too. What DynamoDB refused for certain,
because of another transaction on the same items, is sent again with a new token.
Never: a token sent again later than that, by a clock that counts suspend: DynamoDB forgets it after ten minutes.
"""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from fencelock.errors import GuardError, OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.aws.clients import Call, Calls, Refusal
from fencelock.stores.dynamodb.guard.items import ItemAction
from fencelock.stores.dynamodb.requests import BUSY, Patience
from fencelock.stores.optimistic.write_buffer import too_large_error

MAX_ITEMS = 100
"""Items in one transaction, those that are only checked included."""
MAX_REQUEST_BYTES = 4 * 2**20
MAX_ITEM_BYTES = 400 * 2**10
_CANCELLED, _IN_PROGRESS = "TransactionCanceledException", "TransactionInProgressException"
_PASSING_REASONS = {None, "None", "TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"}
"""Reasons for a cancelled transaction that pass."""


def check_size(actions: Sequence[ItemAction]) -> None:
    """Raise GuardError for a transaction that is larger than DynamoDB takes."""
    if len(actions) > MAX_ITEMS:
        raise too_large_error(
            f"writes and checks {len(actions)} items, its marks included",
            f"DynamoDB takes {MAX_ITEMS} in a transaction",
        )
    sizes = [action.size_bytes() for action in actions]
    if (largest := max(sizes)) > MAX_ITEM_BYTES:
        raise too_large_error(f"writes {largest} bytes into one item", f"DynamoDB keeps {MAX_ITEM_BYTES} in an item")
    if sum(sizes) > MAX_REQUEST_BYTES:
        raise too_large_error(f"writes {sum(sizes)} bytes", f"DynamoDB takes {MAX_REQUEST_BYTES} in a transaction")


class _Attempts:
    """The tries of one transaction: their token, and what makes its outcome unknown, if anything does."""

    def __init__(self) -> None:
        self.token = uuid4().hex
        self.doubt = ""

    def renew(self) -> None:
        """Take a new token for a request that was refused, unless one with this token may still be under way."""
        if not self.doubt:
            self.token = uuid4().hex

    def given_up(self, reason: str) -> SourceError:
        """Return the error for a request that is not sent again."""
        if self.doubt:
            return OutcomeUnknownError(self.doubt)
        return SourceUnavailableError(f"{reason}: nothing was written. Try again")


def transact(actions: Sequence[ItemAction]) -> Calls[None]:
    """Write and check all items, or nothing; ConflictError if a condition does not hold."""
    check_size(actions)
    entries = [action.entry() for action in actions]
    expects = BUSY | {_CANCELLED, _IN_PROGRESS}
    patience, attempts = Patience(), _Attempts()
    while True:
        # The same token again after a lost reply: DynamoDB carries out each token once.
        request = {"TransactItems": entries, "ClientRequestToken": attempts.token}
        reason = "DynamoDB was not reached again"
        answer = None
        try:
            answer = yield Call("transact_write_items", request, expects)
            if not isinstance(answer, Refusal):
                return
        except OutcomeUnknownError as error:
            attempts.doubt = str(error)
        except SourceError as error:
            # This request did nothing for certain; one before it may have.
            if not attempts.doubt:
                raise
            if not isinstance(error, SourceUnavailableError):
                raise attempts.given_up("") from error
        if answer is not None:
            _judge(answer, actions, attempts)
            reason = f"DynamoDB could not do it now ({answer.code}: {answer.message})"
        if (pause := patience.next_pause()) is None:
            raise attempts.given_up(reason)
        yield pause
        if patience.is_over():
            raise attempts.given_up(reason)  # The process was frozen meanwhile.


def _judge(refusal: Refusal, actions: Sequence[ItemAction], attempts: _Attempts) -> None:
    """Raise what a refusal means; return if the request is to be sent again."""
    if refusal.code == _IN_PROGRESS:
        attempts.doubt = f"DynamoDB did not end the transaction in time ({refusal.message})"
    if refusal.code != _CANCELLED:
        return
    reasons: Sequence[dict[str, Any]] = refusal.reply.get("CancellationReasons") or [{"Code": ""}]
    named = list(zip(actions, reasons, strict=False))
    failed = [action for action, reason in named if reason.get("Code") == "ConditionalCheckFailed"]
    # A mark's value never comes again, so a lost request with this condition fails too. Any other condition may hold
    # once more when the lost request arrives.
    if failed and (not attempts.doubt or any(action.is_mark for action in failed)):
        raise ConflictError(failed[0].failure())
    refused = [(action, reason) for action, reason in named if reason.get("Code") not in _PASSING_REASONS]
    if not refused:
        attempts.renew()
    elif attempts.doubt:
        # The lost request may still arrive, and find that the condition holds again.
        raise attempts.given_up("")
    else:
        ((action, reason), *_) = refused
        raise GuardError(
            f"DynamoDB refused what was to be done in table {action.table!r} ({reason.get('Code')}: "
            f"{reason.get('Message')}; {refusal.message}): nothing was written"
        )
