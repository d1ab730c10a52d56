"""What a client of a lease sends with each call, and what it believes of the answer. Both APIs use it.

Promise: an answer is believed only if a guard has admitted the call with the lease's own token. Each seal that a
service tells of is remembered, with whichever status it came. A status of the service's guard becomes the error that a
guard in this process would raise. A call that may have been executed is never called undone.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import grpc

from fencelock._api.credentials import LeaseLike, credential_of
from fencelock._grpc_wire import UNREACHED
from fencelock._remote.fields import (
    KEY_FIELD,
    MARK_FIELD,
    REPLAYED,
    REPLAYED_FIELD,
    SEALED_FIELD,
    TOKEN_FIELD,
    encode_sealed,
    encode_string,
    read_marks,
)
from fencelock._remote.idempotency_keys import RequestKeys
from fencelock._remote.seals import (
    SEAL_MEMORIES,
    RemoteMark,
    SealMemory,
    late_seal,
    note_admitted,
    wait_for_each,
    wait_for_each_async,
)
from fencelock.errors import FencelockError, OutcomeUnknownError, SourceUnavailableError, UnsupportedError
from fencelock.grpc.clients.targets import Options
from fencelock.grpc.method_and_metadata import Metadata
from fencelock.grpc.statuses import decode_status

Pairs = Iterable[tuple[str, str | bytes]]
_SERVICE_CONFIG = "grpc.service_config"
"""With this option gRPC may send a call again by itself, so that its last failure is not its only one."""
_IN_DOUBT = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}
"""What gRPC itself, or something in between, may answer after the handler has run.

The others come from handlers, or from a proxy that has not passed the call on: gRPC reads its 401, 403 and 404 as
UNAUTHENTICATED, PERMISSION_DENIED and UNIMPLEMENTED, and each other status of HTTP as one of these.
"""


class CallRules:
    """The rules of one channel of one lease. Any thread may use it."""

    def __init__(self, lease: LeaseLike, target: str, options: Options, *, independent: bool) -> None:
        self._credential = credential_of(lease)
        self._target = target
        self._text = encode_string(str(self._credential.sequencer))
        self._seals = SEAL_MEMORIES.of(self._credential)
        self._keys = RequestKeys(self._credential.sequencer)
        self._may_repeat = any(name == _SERVICE_CONFIG for name, _ in options)
        self._is_independent = independent

    def is_sealed(self) -> bool:
        """Return whether the service has told of a seal."""
        return bool(self._seals.ids(self._target))

    @contextmanager
    def sending(self, own: Pairs | None) -> Iterator[list[tuple[str, str | bytes]]]:
        """A block that sends one call, with these metadata; the lease's error if it is over. `own` are the caller's.

        The lease's release waits for the block.
        """
        block = object()
        self._credential.enter_guarded(block)
        try:
            self._credential.check_valid()
            yield self._metadata(own)
        finally:
            self._credential.leave_guarded(block)

    def _metadata(self, own: Pairs | None) -> list[tuple[str, str | bytes]]:
        sent = [(key, value) for key, value in own or ()]
        if all(key != KEY_FIELD for key, _ in sent):
            sent.append((KEY_FIELD, self._keys.draw()))
        if ids := self._seals.ids(self._target):
            sent.append((SEALED_FIELD, encode_sealed(ids)))
        return [*sent, (TOKEN_FIELD, self._text)]

    # --- the seal before the first call -------------------------------------------------------------------------------
    def check_may_seal(self) -> None:
        """Raise GuardError if the service would be sealed after the tenure has read elsewhere (G2)."""
        late = late_seal(self._credential.tenure, self._target, "fencelock.grpc.seal(channel)")
        if late is not None and not self._is_independent:
            raise late

    def turn(self, timeout_s: float | None) -> "SealTurn":
        """Return the turn of a seal, which its call's timeout limits."""
        return SealTurn(self._seals, self._target, timeout_s)

    # --- the answers --------------------------------------------------------------------------------------------------
    def check_answer(self, *received: Pairs | None, method: str, is_seal: bool) -> None:
        """Remember the seals in an answer's metadata; UnfencedWriteError if no guard has admitted its call."""
        pairs = _pairs(*received)
        marks = _marks(pairs)
        # A handler that answers a repeated call by itself uses no guard, so its answer has no marks.
        if (REPLAYED_FIELD, REPLAYED) in pairs and not marks:
            return
        with _answered(self._target + method, is_seal=is_seal):
            self._seals.check_fenced(self._target, marks)
        note_admitted(self._credential.tenure, self._target, is_seal=is_seal)

    def error(self, error: Any, *, key: str | None, method: str, is_seal: bool) -> Exception:
        """Return the error that a call's status means; the status itself if it is the handler's own answer."""
        pairs = _pairs(error.initial_metadata(), error.trailing_metadata())
        marks = _marks(pairs)
        with _answered(self._target + method, is_seal=is_seal):
            # With whichever status: a call that has failed may have sealed the service as well.
            self._seals.remember(self._target, marks)
        told = decode_status(str(error.details() or ""), pairs, self._credential.sequencer.token)
        meant = told or self._meant_by_code(error, pairs)
        if error.code() is grpc.StatusCode.NOT_FOUND and told is None and not is_seal:
            self._check_absence(error, pairs, marks, method)
        if meant is error and marks:
            # The handler's own answer, which a guard has admitted: it may tell what was read (G2).
            note_admitted(self._credential.tenure, self._target, is_seal=is_seal)
        if is_seal:
            return self._meant_by_seal(error, meant)
        if isinstance(meant, OutcomeUnknownError):
            meant.idempotency_key = key
        return meant

    def _check_absence(self, error: Any, pairs: Metadata, marks: tuple[RemoteMark, ...], method: str) -> None:
        """Raise UnfencedWriteError if no guard has admitted the call: a holder acts on "there is none" as on a row."""
        if (REPLAYED_FIELD, REPLAYED) not in pairs or marks:
            with _answered(f"{self._target}{method} was answered {_text_of(error)}", is_seal=False):
                self._seals.check_fenced(self._target, marks)

    def _meant_by_seal(self, error: Any, meant: Exception) -> Exception:
        """Return the error of a seal: what it was made for was not sent."""
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return UnsupportedError(
                f"{self._target} does not fence its calls: give its server fencelock.grpc.FencingInterceptor(guards), "
                f"or call it over a channel without the lease. Nothing was done"
            )
        if isinstance(meant, OutcomeUnknownError):
            return SourceUnavailableError(
                f"{self._target} could not be sealed, and nothing was done ({_text_of(error)})"
            )
        return meant

    def _meant_by_code(self, error: Any, pairs: Metadata) -> Exception:
        code, text = error.code(), _text_of(error)
        if code is grpc.StatusCode.UNAVAILABLE and self._was_never_sent(str(error.details()), pairs):
            return SourceUnavailableError(f"{self._target} cannot be reached, and nothing was done ({text})")
        if code not in _IN_DOUBT:
            return error  # type: ignore[no-any-return]
        return OutcomeUnknownError(
            f"{self._target} did not answer ({text}): the call may have been executed. To repeat it without doing it "
            f"twice, send this error's idempotency_key as the metadata {KEY_FIELD}, if the service keeps keys; or read "
            f"what is there"
        )

    def _was_never_sent(self, details: str, pairs: Metadata) -> bool:
        # A service that could not reach another one may pass the same text on, but a fenced one adds its marks.
        return not pairs and not self._may_repeat and details.startswith(UNREACHED)


class SealTurn:
    """A block in which no other thread, task or channel of the tenure makes its first seal of the service.

    Of two seals the later one could replace a lost one after the answer to the earlier one was read (G9).
    """

    def __init__(self, seals: SealMemory, target: str, timeout_s: float | None) -> None:
        self._seals = seals
        self._target = target
        self._timeout_s = timeout_s
        self._end: Future[None] = Future()

    def __del__(self) -> None:
        """End the turn here if a signal handler raised before `__exit__` did."""
        if hasattr(self, "_end"):
            self._leave()

    def __enter__(self) -> None:
        with self._telling():
            wait_for_each(self._seals.others(self._target, self._end), self._timeout_s)

    async def __aenter__(self) -> None:
        with self._telling():
            await wait_for_each_async(self._seals.others(self._target, self._end), self._timeout_s)

    def __exit__(self, *_: object) -> None:
        self._leave()

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._leave()
            if not isinstance(error, TimeoutError):
                raise
            raise SourceUnavailableError(
                f"{self._target} was not called: the lease's first seal of it has no answer after {self._timeout_s:g} "
                f"s. Nothing was done: try again"
            ) from None

    def _leave(self) -> None:
        self._seals.first_requests.end(self._target, self._end)


class OwnSeal(bytes):
    """The request of a seal that a channel sends by itself, in a turn that it has already."""


def _marks(pairs: Metadata) -> tuple[RemoteMark, ...]:
    return read_marks(str(value) for key, value in pairs if key == MARK_FIELD)


@contextmanager
def _answered(called: str, *, is_seal: bool) -> Iterator[None]:
    """A block that judges an answer: what is wrong with its marks does not undo what the handler did."""
    try:
        yield
    except FencelockError as error:
        error.args = (f"{called}: {error}",)
        error.definite = is_seal
        raise


def key_in(metadata: Pairs) -> str | None:
    """Return the idempotency key of a call."""
    return next((str(value) for key, value in metadata if key == KEY_FIELD), None)


def _text_of(error: Any) -> str:
    return f"{error.code().name}: {error.details() or ''}".rstrip(": ")


def _pairs(*received: Iterable[Any] | None) -> Metadata:
    return tuple((key, value) for metadata in received for key, value in metadata or ())
