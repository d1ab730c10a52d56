"""Errors of stores: mapping those of a client library, and those that several stores raise in the same words.

Promise: a client library's error that the store recognises is raised as the matching FencelockError, with the
original as its cause; any other error passes unchanged, KeyboardInterrupt and CancelledError included.
Never: an error that refers to a frame through which it passes. Such a cycle would keep the frame's variables alive,
a forgotten lease among them, until the garbage collector runs.
"""

import shlex
from collections.abc import Callable, Iterable
from types import TracebackType

from fencelock.errors import (
    BlockLostError,
    FencelockError,
    GuardError,
    ImplausibleTokenError,
    SchemaError,
    SourceError,
    SourceUnavailableError,
    StaleTokenError,
    UnsupportedError,
)
from fencelock.model import Finding, Mark, token_ceiling
from fencelock.protocol.guard_requests import EndSessions, Floor, GrantRight, RevokeRights
from fencelock.protocol.stores import LostBlockNote

_ABOUT_RIGHTS = (GrantRight, RevokeRights, EndSessions)
_OF_KEYS = ("signing_key", "source_key", "add_key", "retire_key")
SOURCE_PART, GUARD_PART = "source of tokens", "guard"
"""The two halves of fencelock's schema, as errors name them."""


class ErrorMapper:
    """A reusable context manager that maps a client library's errors to FencelockError.

    It is a class because a generator-based context manager would cost measurable time in every request.
    """

    __slots__ = ("_map_error",)

    def __init__(self, map_error: Callable[[BaseException], SourceError | None]) -> None:
        self._map_error = map_error

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            raise_mapped(self._map_error(error), error)


def raise_mapped(mapped: FencelockError | None, error: BaseException) -> None:
    """Raise `mapped` from `error`; return if `mapped` is None. Pass `mapped` as an expression, not as a variable."""
    if mapped is None:
        return
    try:
        raise mapped from error
    finally:
        # The raised error's traceback refers to this frame: without its variables there is no cycle.
        del mapped, error


def check_schema_number(where: str, part: str, found: object, expected: int) -> None:
    """Raise SchemaError unless a half of the schema is there with the number of this version."""
    if found == expected:
        return
    if not isinstance(found, int):
        raise incomplete(where, part)
    remedy = (
        "a newer version made it, so update fencelock here"
        if found > expected
        else "an older version made it, so use that one, or remove it with that one and install it anew with this one"
    )
    raise SchemaError(
        f"{where} holds fencelock's {part} with schema {found}, and this version of fencelock has schema {expected}: "
        f"{remedy}"
    )


def not_permitted(url: str, message: str, remedy: str) -> SourceError:
    """Return the error for a request that a role may not make. No role is ever advised to get a table of secrets."""
    if any(name in message for name in _OF_KEYS):
        remedy = (
            "the keys are secret, and only the owner of the source's schema reads and writes them. Have the owner run "
            "`fencelock keys`, and grant this to nobody: who reads a key can sign whatever the source would"
        )
    return SourceError(f"{url} does not permit it ({message}): {remedy}")


def unreachable(url: str, message: str) -> SourceError:
    """Return the error for a connection that could not be opened."""
    return SourceUnavailableError(f"{url} cannot be reached: {message}")


def login_refused(url: str, message: str, remedy: str) -> SourceError:
    """Return the error for a server that refused the login, which only a person can mend: `message` is its own."""
    return SourceError(f"{url} refused the login ({message}): {remedy}")


def not_installed(url: str, part: str, message: str = "", *, or_else: str = "") -> SchemaError:
    """Return the error for a store without this half of the schema; `message` is the store's own. `or_else` is what to
    do first if the URL may be wrong.
    """
    option = "--source" if part == SOURCE_PART else "--guard"
    said = f" ({message})" if message else ""
    return SchemaError(
        f"{url} holds no {part} of fencelock's{said}: {or_else}as its owner, run "
        f"`fencelock install {option} {shlex.quote(url)}`"
    )


def incomplete(where: str, part: str) -> SchemaError:
    """Return the error for a half of the schema without the row that says that it is whole."""
    return SchemaError(
        f"{where} holds fencelock's {part}, and its one row is missing: if an installation was interrupted, run "
        f"`fencelock install` again as the owner; if the row was deleted, restore it from a backup"
    )


def unknown_parameter(name: str, query: str, known: Iterable[str]) -> str:
    """Return the reason to refuse a URL with this parameter, which may be the end of a password with a ? in it."""
    subject = "one of its parameters is unknown" if "@" in query else f"there is no parameter {name!r}"
    return f"{subject}; known: {', '.join(sorted(known))}"


def nothing_protected(resource: str) -> GuardError:
    """Return the error for a resource that protects no table."""
    return GuardError(f"resource {resource!r} protects no table here: `fencelock marks` lists the resources")


def not_protected(table: str, resource: str) -> GuardError:
    """Return the error for a table that the resource does not protect."""
    return GuardError(f"table {table!r} is not protected by resource {resource!r}: `fencelock marks` lists what is")


def ended_in_part(message: str) -> GuardError:
    """Return the error of a block that ended its own transaction. It is not definite: some of it may be committed."""
    error = GuardError(message)
    error.definite = False
    return error


def closed_inside() -> BlockLostError:
    """Return the error for a block whose connection ended before its end."""
    return BlockLostError(
        "the connection of the guarded transaction was closed inside its block: by the block itself, by the network, "
        "or by the server, which ends a transaction that is idle for longer than it may. Nothing of it was written"
    )


def idle_inside() -> BlockLostError:
    """Return the error for a block that the server ended because it was idle."""
    return BlockLostError(
        "the guarded transaction was idle for longer than it may, so the server ended it, and nothing of it was written"
    )


def note_lost(error: BaseException) -> None:
    """Note on the user's own error that the connection ended inside its block."""
    error.add_note(LostBlockNote(f"fencelock: {closed_inside()}"))


def check_plausible(resource: str, token: int, mark: int, unix_s: float) -> None:
    """Raise ImplausibleTokenError if no source can have issued the token by now."""
    ceiling = token_ceiling(unix_s, mark)
    if token > ceiling:
        raise implausible(resource, token, ceiling)


def implausible(resource: str, token: int, ceiling: int) -> ImplausibleTokenError:
    """Return the error for a token above the ceiling, which is what the store's clock and the mark allow."""
    return ImplausibleTokenError(
        f"resource {resource!r} is not sealed with token {token}: no source can have issued a token above {ceiling} by "
        f"now, by the clock and the mark of the resource. Find out who made the token. If its source is genuine, and "
        f"was restored under a wrong clock, run `fencelock marks URL --raise-to SOURCE --implausible --reason …`",
        token=token,
        ceiling=ceiling,
        resource=resource,
    )


def check_above_floor(mark: Mark, floor: Floor | None) -> None:
    """Raise StaleTokenError for a mark that its resource gets with a source that it did not have, and that the floor of
    that source does not admit (G15). An operator's mark may equal the floor, for it admits only higher tokens.
    """
    if floor is not None and mark.token < floor.token + (mark.digest is not None):
        raise below_floor(mark.resource, mark.token, floor)


def below_floor(resource: str, token: int, floor: Floor) -> StaleTokenError:
    """Return the error for a token that is not above the floor of the marks that were purged."""
    return StaleTokenError(
        f"resource {resource!r} has no mark of source {floor.source_id}, and marks of that source up to token "
        f"{floor.token} were purged here: token {token} is refused, for it may be older than what was purged. Nothing "
        f"was written; acquire the lock again",
        token=token,
        mark=floor.token,
        resource=resource,
    )


def floor_changed(floor: Floor, expected: int) -> GuardError:
    """Return the error for a change of a floor that somebody else has changed since it was read."""
    return GuardError(
        f"the floor of source {floor.source_id} is {floor.token} now, not {expected}: look again before you set it"
    )


def keeps_no_rights(url: str) -> UnsupportedError:
    """Return the error for a question about rights to a store that its clients reach directly."""
    return UnsupportedError(
        f"{url} keeps no rights: each of its clients writes the marks itself. Limit who reaches it: by the "
        f"permissions of the file, or by the roles and access lists of the server"
    )


def unsupported(request: object, url: str) -> UnsupportedError:
    """Return the error for a request about rights, keys or signatures to a store that its clients reach directly."""
    if isinstance(request, _ABOUT_RIGHTS):
        return keeps_no_rights(url)
    return UnsupportedError(
        f"{url} keeps no keys: its clients reach the store itself and could sign what they like, so a signature would "
        f"prove nothing there. PostgreSQL and MySQL sign sequencers, and check signatures"
    )


def refused_finding(code: str, error: BaseException) -> Finding:
    """Return the finding for a store whose examination ended with an error, which has the remedy."""
    return Finding(code, str(error), "do what the message says, then run doctor again")
