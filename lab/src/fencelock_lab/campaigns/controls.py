"""The negative controls of `fencelock verify`: each breaks one rule, and a campaign must catch it.

Most use the store's real guard in a wrong way, so that they work at every store:

    unfenced         each process presents the newest token that any process has, instead of its own
    strict           a token is refused the second time, so that a holder can write only once
    seal-after-read  a read presents a token that has sealed before, so that a tenure seals with its first write
    memory-mark      as `unfenced`, and each process refuses what is below the highest token that it has seen itself
    seal-one         each resource of a lock is sealed by itself, when it is first used
    untold           no process is told that its lease is lost: the guard is used as it should be

Others are guards of a SQLite file (file_guards.py) or of documents (document_guards.py), or a handler of an HTTP
service (http_service.py). Promise: a control works only on files and servers that were made for it. Copy none.
"""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import fencelock
from fencelock_lab.campaigns.file_guards import FILE_GUARDS
from fencelock_lab.campaigns.http_service import COMPARE_FIRST
from fencelock_lab.campaigns.settings import UNTOLD, CampaignSettings
from fencelock_lab.campaigns.target import GuardTarget, Misuse, Proof, stale_error

_DIGITS = 19
"""As many as the highest token has: file names are ordered as their tokens are."""


class SharedProofs:
    """The proofs that the processes of a run have shown each other: a file for each token."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._published = 0

    def publish(self, proof: Proof) -> None:
        """Let the other processes have the proof."""
        if proof.token == self._published:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        sequencer = proof if isinstance(proof, fencelock.Sequencer) else proof.sequencer
        with tempfile.NamedTemporaryFile("w", dir=self._folder, prefix="new-", delete=False) as file:
            file.write(str(sequencer))
        Path(file.name).rename(self._folder / f"{proof.token:0{_DIGITS}}")
        self._published = proof.token

    def newest(self) -> fencelock.Sequencer | None:
        """Return the proof with the highest token; None if there is none yet."""
        names = [path.name for path in self._folder.glob("[0-9]*")]
        return fencelock.Sequencer.parse((self._folder / max(names)).read_text()) if names else None


class _ControlBase:
    """What all wrong uses have: the guard, and the proofs of the other processes."""

    def __init__(self, settings: CampaignSettings, target: GuardTarget) -> None:
        self._target = target
        self._guard = target.guard
        self._shared = SharedProofs(Path(settings.control_folder, target.lock))


class Unfenced(_ControlBase):
    """A lock alone: a process that believes that it holds the lock may write."""

    def transaction(self, proof: Proof, resource: str, *, is_writing: bool) -> AbstractContextManager[Any]:
        """Present the newest proof of all processes."""
        self._shared.publish(proof)
        newest = self._shared.newest()
        return self._guard.transaction(proof if newest is None or newest.token == proof.token else newest)


class Strict(_ControlBase):
    """`token > mark`, where `>=` is meant: the holder's own second transaction is stale."""

    _last = 0

    def transaction(self, proof: Proof, resource: str, *, is_writing: bool) -> AbstractContextManager[Any]:
        """Refuse a token that was presented before."""
        if proof.token == self._last:
            raise stale_error(proof.token, proof.token, resource)
        self._last = proof.token
        return self._guard.transaction(proof)


class SealAfterRead(_ControlBase):
    """The seal is committed by itself and covers every resource, but comes with the first write: after the read."""

    def transaction(self, proof: Proof, resource: str, *, is_writing: bool) -> AbstractContextManager[Any]:
        """Present for a read what another tenure has written with."""
        sealed = self._shared.newest()
        if is_writing or sealed is None:
            self._shared.publish(proof)
            return self._guard.transaction(proof)
        return self._guard.transaction(sealed)


class MemoryMark(Unfenced):
    """Each process has a mark of its own, which no other process sees."""

    _mark = 0

    def transaction(self, proof: Proof, resource: str, *, is_writing: bool) -> AbstractContextManager[Any]:
        """Refuse a token lower than what this process remembers."""
        if proof.token < self._mark:
            raise stale_error(proof.token, self._mark, resource)
        self._mark = proof.token
        return super().transaction(proof, resource, is_writing=is_writing)


class SealOne(_ControlBase):
    """A guard for each resource, opened one after the other; `independent` silences the guard's own objection."""

    def transaction(self, proof: Proof, resource: str, *, is_writing: bool) -> AbstractContextManager[Any]:
        """Seal this resource alone."""
        target = self._target
        guard = fencelock.guard(target.url, resource=resource, lock=target.lock, independent=True)
        return guard.transaction(proof)


CHECK_FIRST, NO_SEAL, NO_SEAL_STRICT, SEAL_ONE = "check-first", "no-seal", "no-seal-strict", "seal-one"
DOCUMENT_CONTROLS = {
    "file": (CHECK_FIRST,),
    "redis": (CHECK_FIRST, NO_SEAL),
    "s3": (CHECK_FIRST,),
    "dynamodb": (NO_SEAL, NO_SEAL_STRICT),
}
"""The broken guards of each kind of documents (document_guards.py)."""
MISUSES: dict[str, Callable[[CampaignSettings, GuardTarget], Misuse]] = {
    "unfenced": Unfenced,
    "strict": Strict,
    "seal-after-read": SealAfterRead,
    "memory-mark": MemoryMark,
    SEAL_ONE: SealOne,
}
LONE = ("s3",)
"""The servers where each lock of a campaign has one resource, since their guard cannot seal two in one step."""
EVERYWHERE = (*MISUSES, UNTOLD)
"""The controls that need nothing of a store but that it spans resources, for `seal-one`."""
CONTROLS = (*EVERYWHERE, *FILE_GUARDS, COMPARE_FIRST, CHECK_FIRST)
"""All controls that need no server, by their names; `sound` alone breaks no rule."""
SOUND = "sound"


def controls_of(servers: str | None) -> tuple[str, ...]:
    """Return the controls that work in files, or at private servers of this kind."""
    if servers is None:
        return CONTROLS
    own = DOCUMENT_CONTROLS.get(servers, ())
    return tuple(one for one in EVERYWHERE if one != SEAL_ONE or servers not in LONE) + own
