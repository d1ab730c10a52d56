"""An operator's work on who may write: rights, keys, and the cure of a poisoned mark.

Promise: each change of rights, keys or marks is one flushed transaction with its audit entries. The cure takes the
rights away, then ends the role's sessions (without an entry), and only then moves the mark, so that a forger who goes
on cannot poison it again. Never: a mark moved above what its source has issued.
"""

from typing import NamedTuple

from fencelock._flows.conflicts import retry_on_conflict
from fencelock._flows.marks import read_marks
from fencelock._flows.tenure import Scope
from fencelock.errors import SourceUnavailableError
from fencelock.model import Mark, SigningKey, SourceInfo
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import (
    AuditEntry,
    Begin,
    ChangeMark,
    Commit,
    EndSessions,
    GrantRight,
    GuardFlow,
    RequireSignatures,
    RevokeRights,
    Right,
    WriteKeys,
)


class Cured(NamedTuple):
    """What the cure did: the rights that it took, the sessions that it ended, and each mark that it moved, before."""

    rights: tuple[Right, ...]
    sessions: int
    marks: tuple[Mark, ...]


@retry_on_conflict
def grant(resources: tuple[str, ...], roles: tuple[str, ...], who: str) -> GuardFlow[None]:
    """Let each role seal, present and close these resources."""
    yield Begin()
    for resource in resources:
        for role in roles:
            yield GrantRight(Right(resource, role), _entry("grant", resource, who, f"to {role}"))
    yield Commit()


@retry_on_conflict
def revoke(resources: tuple[str, ...], role: str, who: str, reason: str) -> GuardFlow[tuple[Right, ...]]:
    """Take every right of the role that covers one of these resources; return what it had."""
    yield Begin()
    entries = tuple(_entry("revoke", resource, who, f"{reason} (from {role})") for resource in resources)
    taken = yield from ask(RevokeRights(resources, role, entries))
    yield Commit()
    return taken


@retry_on_conflict
def require_signatures(resources: tuple[str, ...], is_required: bool, who: str, reason: str) -> GuardFlow[None]:
    """Require, or no longer require, a valid signature of every sequencer that raises these marks."""
    yield Begin()
    action = "require-signatures" if is_required else "accept-unsigned"
    entries = tuple(_entry(action, resource, who, reason) for resource in resources)
    yield RequireSignatures(resources, is_required, entries)
    yield Commit()


@retry_on_conflict
def install_keys(keys: tuple[SigningKey, ...], who: str) -> GuardFlow[None]:
    """Replace the keys with which the guards of this store check signatures."""
    yield Begin()
    named = ", ".join(key.key_id for key in keys) or "none"
    yield WriteKeys(keys, _entry("install-keys", "*", who, f"keys {named}"))
    yield Commit()


def unpoison(scope: Scope, roles: tuple[str, ...], source: SourceInfo, who: str, reason: str) -> GuardFlow[Cured]:
    """Undo what a forger did to the marks of the guard, and keep it from doing it again."""
    taken: tuple[Right, ...] = ()
    sessions = 0
    for role in roles:
        try:
            taken += yield from revoke(scope.resources, role, who, reason)
        except SourceUnavailableError:
            # A session of the role may keep its rights locked, by a transaction that has read them and does not end.
            sessions += yield from ask(EndSessions(role))
            taken += yield from revoke(scope.resources, role, who, reason)
        # A seal that waits for the mark's lock, or has raised the mark and not committed, ends with its session.
        sessions += yield from ask(EndSessions(role))
    moved = yield from _restore_marks(scope, source, who, reason)
    return Cured(taken, sessions, moved)


@retry_on_conflict
def _restore_marks(scope: Scope, source: SourceInfo, who: str, reason: str) -> GuardFlow[tuple[Mark, ...]]:
    """Lower each mark to the source's last token, and bind it again if lock or source was poisoned too.

    A mark that any lease has sealed becomes an operator's, since its token may be forged as well: the holder of the
    lock acquires it again. A token of another source says nothing about this one's: the mark becomes the last token.
    """
    yield Begin()
    moved = []
    for mark in (yield from read_marks(scope)):
        is_bound = mark.lock == scope.lock and mark.source_id in (None, source.source_id)
        if is_bound and mark.token <= source.last_token and mark.digest is None:
            continue
        token = min(mark.token, source.last_token) if mark.source_id == source.source_id else source.last_token
        action = "lower" if is_bound else "rebind"
        entry = AuditEntry(action, mark.resource, mark.token, token, who, f"poisoned: {reason}")
        yield ChangeMark(Mark(mark.resource, scope.lock, token, source.source_id, source.history_id), entry)
        moved.append(mark)
    yield Commit()
    return tuple(moved)


def _entry(action: str, resource: str, who: str, reason: str) -> AuditEntry:
    return AuditEntry(action, resource, 0, 0, who, reason)
