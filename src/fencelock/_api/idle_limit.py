"""For how long a guarded block may be idle, and what its user is told when its connection ended inside it (G3).

Promise: the limit is the time that the lease has left when the block begins, or what the caller chose instead. A block
whose connection ended says whether the lease is still valid, what the limit was, and what to do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fencelock._api.credentials import Credential, note_asker
from fencelock._api.durations import Duration, in_seconds, is_number
from fencelock.errors import BlockLostError, ConfigError, FencelockError, LeaseError
from fencelock.protocol.stores import LostBlockNote

MAX_IDLE_S = 600.0
"""The longest `idle` that a caller may choose: so long may a holder that freezes inside its block delay a successor."""
_MS_PER_S = 1000


class IdleLimit:
    """The limit of one block."""

    __slots__ = ("_chosen_ms", "_credential", "ms")

    def __init__(self, credential: Credential, idle: Duration | None = None) -> None:
        self._credential = credential
        self._chosen_ms = None if idle is None else _check_idle_ms(idle)
        self.ms: int | None = None

    def begin(self) -> int | None:
        """Return the limit of a block that begins now, in milliseconds; None if it is unknown."""
        self.ms = left_ms(self._credential) if self._chosen_ms is None else self._chosen_ms
        return self.ms

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Complete the message of a BlockLostError that leaves the block's end."""
        try:
            yield
        except BlockLostError as error:
            self.explain(error, error)
            raise

    def explain(self, error: BaseException, mapped: FencelockError | None) -> None:
        """Say more of a block whose connection ended: in the error that replaces the user's, or in a note on that.

        The error that replaces the user's is the guard's, and notes for whose lease it is raised.
        """
        if mapped is not None:
            note_asker(mapped, self._credential)
        if isinstance(mapped, BlockLostError):
            mapped.args = (f"{mapped}. {self._advice()}",)
        elif mapped is None and _is_noted(getattr(error, "__notes__", ())[-1:]):  # Not a note of a block inside.
            error.add_note(f"fencelock: {self._advice()}")

    def _advice(self) -> str:
        limit = "an unknown time" if self.ms is None else f"{self.ms / _MS_PER_S:g} s"
        origin = "what its lease had left when it began" if self._chosen_ms is None else "its `idle`"
        return (
            f"{self._of_lease()}. The block might be idle for {limit}, {origin}. Compute before the block, ask for a "
            f"longer ttl, or let the block be idle for longer: `idle=` seconds, {MAX_IDLE_S:g} at most. (A successor "
            f"waits as long for a holder that froze in its block.)"
        )

    def _of_lease(self) -> str:
        credential = self._credential
        try:
            credential.check_valid()
            left_s = credential.remaining()
        except LeaseError as problem:
            return f"The lease is over too: {problem}"
        if left_s is None:
            return "Whether the lease is still valid is not known in this process"
        sequencer = credential.sequencer
        return (
            f"The lease on lock {sequencer.lock!r} with token {sequencer.token} is still valid, for {left_s:.1f} s: "
            f"only this block is gone. Begin another one"
        )


def left_ms(credential: Credential) -> int | None:
    """Return the time that the lease has left, in milliseconds; None if it is unknown in this process."""
    remaining = credential.remaining()
    return None if remaining is None else int(remaining * _MS_PER_S)


def is_from_lost_block(error: BaseException) -> bool:
    """Return whether the error left a guarded block whose connection had ended inside it."""
    return isinstance(error, BlockLostError) or _is_noted(getattr(error, "__notes__", ()))


def _is_noted(notes: Sequence[str]) -> bool:
    return any(isinstance(note, LostBlockNote) for note in notes)


def _check_idle_ms(duration: object) -> int:
    idle = in_seconds(duration)
    if not is_number(idle) or not 0 < idle <= MAX_IDLE_S:
        raise ConfigError(f"idle is a number of seconds above 0, {MAX_IDLE_S:g} at most; not {duration!r}")
    return max(1, int(idle * _MS_PER_S))
