"""A sequencer that came over the wire, and what its tenure remembers: the client's memory, not this process's.

Promise: a resource whose seal the client was told of is never sealed again, in whichever process the request arrives:
its mark is the sequencer's, or SealLostError (G9). If the client was told of a seal, a resource that it was not told of
counts as sealed after a read (G2). The same holds for the seals of services that the sequencer is passed on to. Nothing
outlives the request. Never: shown by `repr`; a mark kept here.
"""

from collections.abc import Collection

from fencelock._api.credentials import SequencerCredential, note_asker
from fencelock._flows.tenure import Key
from fencelock._remote.seals import (
    MAX_SEAL_IDS,
    SEAL_ID_CHARACTERS,
    PassedSeals,
    PassingTenure,
    RemoteMark,
    seal_id,
)
from fencelock.errors import GuardError
from fencelock.model import Sequencer


class RemoteTenure(PassingTenure):
    """A tenure in one request: what its client was told, and the resources that have admitted it since."""

    __slots__ = ("_admitted", "_has_answered", "_told", "has_begun_reading")

    def __init__(self, told: Collection[str] = ()) -> None:
        """`told`: the seal ids that the client repeats."""
        super().__init__()
        # Of another service's resource that service is known, by which the id begins.
        self._told = frozenset(one[:SEAL_ID_CHARACTERS] for one in told)
        self.passed = PassedSeals(told)
        self._admitted: dict[Key, None] = {}
        self._has_answered = False
        self.has_begun_reading = False
        """True once this request has opened a guarded transaction."""
        # What the client was told of, it may have read: a resource that is new to it comes too late.
        self.has_read = bool(told)

    def has_opened(self, key: Key) -> bool:
        """Return whether the client was told of the resource, or this request has used it."""
        return super().has_opened(key) or self._was_told(key)

    def has_sealed(self, *keys: Key) -> bool:
        """Return whether the client was told of each of these seals, or this request has made it."""
        return all(super(RemoteTenure, self).has_sealed(key) or self._was_told(key) for key in keys)

    def _was_told(self, key: Key) -> bool:
        return bool(self._told) and seal_id(key) in self._told

    def check_may_open(self, keys: tuple[Key, ...], *, is_independent: bool) -> None:
        """Raise GuardError if these are too many to tell of, or if one comes too late: after a read, or after the
        answer's head.
        """
        self._check_can_tell(keys)
        if len(self._told.union(map(seal_id, self.opened.union(keys)))) > MAX_SEAL_IDS:
            raise GuardError(
                f"one tenure may seal {MAX_SEAL_IDS} resources of a service at most: protect more by one resource"
            )
        super().check_may_open(keys, is_independent=is_independent)

    def remember(self, opened: tuple[Key, ...], sealed: tuple[Key, ...]) -> None:
        """Remember seals whose commit was confirmed, to tell the client of them."""
        super().remember(opened, sealed)
        self._admitted.update(dict.fromkeys(sealed))

    def begin_reading(self, admitted: tuple[Key, ...]) -> None:
        """Note that these resources have admitted the request."""
        self._check_can_tell(admitted)
        super().begin_reading(admitted)
        self.has_begun_reading = True
        self._admitted.update(dict.fromkeys(admitted))

    def begin_answer(self, *, is_success: bool) -> tuple[str, ...]:
        """Return the seal ids to tell the client; from now on no other resource is opened.

        A mark that was raised in the handler's own transaction is told with a success only: an error may have undone
        it.
        """
        self._has_answered = True
        passed = self.passed.begin_answer()
        services = {one[:SEAL_ID_CHARACTERS] for one in passed}
        own = (seal_id(key) for key in self._admitted if is_success or self.has_sealed(key))
        return (*(one for one in own if one not in services), *passed)

    def _check_can_tell(self, keys: tuple[Key, ...]) -> None:
        if self._has_answered and (late := [key[1] for key in keys if key not in self._admitted]):
            raise GuardError(
                f"resource {late[0]!r} is used after the answer has begun, so that the client cannot be told of its "
                f"mark: use its guard before the first part of the answer is sent"
            )


class CarriedSequencer(SequencerCredential):
    """A sequencer that came with a request. Guards take it wherever they take a lease, but for `close`."""

    __slots__ = ("_open_blocks", "has_begun_blocks")
    tenure: RemoteTenure

    def __init__(self, sequencer: Sequencer, told: Collection[str] = ()) -> None:
        super().__init__(sequencer, RemoteTenure(told))
        self._open_blocks: set[object] = set()
        self.has_begun_blocks = False
        """True once a guarded block began after another one, or beside it, which may be committed."""

    def __repr__(self) -> str:
        return f"<CarriedSequencer lock={self.lock!r} token={self.token}>"

    @property
    def lock(self) -> str:
        """The name of the lock whose lease it is."""
        return self.sequencer.lock

    @property
    def token(self) -> int:
        """The fencing token."""
        return self.sequencer.token

    def enter_guarded(self, block: object) -> None:
        """Note a block that begins, and whether it is not the request's first."""
        self._open_blocks.add(block)
        # Blocks of two tasks may both begin before either is admitted.
        is_beside = len(self._open_blocks) > 1
        self.has_begun_blocks = self.has_begun_blocks or self.tenure.has_begun_reading or is_beside

    def leave_guarded(self, block: object) -> None:
        """Note a block that has ended."""
        self._open_blocks.discard(block)

    def check_no_block_is_open(self) -> None:
        """Raise GuardError inside of a guarded block: a success would be told before its COMMIT, which may fail."""
        if self._open_blocks:
            error = GuardError(
                "the answer begins inside of a guarded block, before its COMMIT: end the block in the handler. A "
                'dependency of FastAPI that yields ends after the answer, unless it is Depends(…, scope="function")'
            )
            note_asker(error, self)
            raise error

    def begin_answer(self, *, is_success: bool) -> tuple[RemoteMark, ...]:
        """Return the marks to tell the client, and open no further resource."""
        return tuple(RemoteMark(self.token, one) for one in self.tenure.begin_answer(is_success=is_success))
