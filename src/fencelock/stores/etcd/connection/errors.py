"""What gRPC's errors mean when they come from etcd: which of them say that nothing was done.

Promise: `definite` is true only where the server itself refused, or was never reached. Any other error, a deadline and
a broken connection above all, leaves the outcome unknown. Messages name the members, never a key's value or a password.
"""

from typing import Any

import grpc

from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError, UnsupportedError
from fencelock.stores.etcd.connection.url import EtcdConnectionInfo

_UNREACHED = ("failed to connect to all addresses", "DNS resolution failed", "errors resolving", "empty address list")
"""How gRPC's details begin when it had no connection to send a request over. Of a name that cannot be resolved older
versions say `DNS resolution failed`, and 1.85 says `errors resolving`.
"""
_STALE_LOGIN = ("invalid auth token", "revision of auth store is old")
_ELSEWHERE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
}


class LeaseGoneError(SourceError):
    """etcd knows no such lease (any more); nothing was done. Never leaves this package."""


class LeaseExistsError(SourceError):
    """etcd has a lease of this id already. Never leaves this package."""


class CompactedError(SourceError):
    """The revision that was asked for is not kept any more. Never leaves this package."""


_DEFINITE: tuple[tuple[grpc.StatusCode, str, type[SourceError], str], ...] = (
    (grpc.StatusCode.NOT_FOUND, "lease not found", LeaseGoneError, "{url} knows no such lease"),
    (grpc.StatusCode.FAILED_PRECONDITION, "lease already exists", LeaseExistsError, "{url} has such a lease already"),
    (grpc.StatusCode.OUT_OF_RANGE, "compacted", CompactedError, "{url} has compacted that revision"),
    (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "too many requests",
        SourceUnavailableError,
        "{url} could not do it now ({said}): try again",
    ),
    (
        grpc.StatusCode.PERMISSION_DENIED,
        "",
        SourceError,
        "{url} does not permit it ({said}): grant the URL's user a role that may read and write the prefix",
    ),
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        "user name is empty",
        SourceError,
        "{url} asks who this is ({said}): write user and password into the URL, etcd://user:password@…",
    ),
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        "authentication failed",
        SourceError,
        "{url} refused the URL's user or password ({said})",
    ),
    (
        grpc.StatusCode.UNIMPLEMENTED,
        "",
        UnsupportedError,
        "{url} does not know what it was asked ({said}): etcd 3.4 or newer is needed",
    ),
    (grpc.StatusCode.INVALID_ARGUMENT, "", SourceError, "{url} refused: {said}"),
    (grpc.StatusCode.FAILED_PRECONDITION, "", SourceError, "{url} refused: {said}"),
    (grpc.StatusCode.UNAUTHENTICATED, "", SourceError, "{url} refused the login: {said}"),
    (grpc.StatusCode.OUT_OF_RANGE, "", SourceError, "{url} refused: {said}"),
    (grpc.StatusCode.NOT_FOUND, "", SourceError, "{url} refused: {said}"),
)
"""What a status means when etcd itself says that nothing was done; the first that fits holds."""


def _said(error: Any) -> str:
    return " ".join(str(error.details() or error.code().name).split())


def was_unreached(error: Any) -> bool:
    """Tell whether the request was never sent."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and _said(error).startswith(_UNREACHED)


def is_stale_login(error: Any) -> bool:
    """Tell whether etcd wants a newer token for the URL's user; nothing was done."""
    return _said(error).endswith(_STALE_LOGIN)


def is_not_permitted(error: SourceError) -> bool:
    """Tell whether an error of the tree means that etcd's roles forbid it to the URL's user."""
    cause = error.__cause__
    return isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.PERMISSION_DENIED


def may_work_elsewhere(error: Any) -> bool:
    """Tell whether another member may answer."""
    return error.code() in _ELSEWHERE


def map_error(error: Any, place: EtcdConnectionInfo) -> SourceError:
    """Return what a failed call means."""
    code, said = error.code(), _said(error)
    if was_unreached(error):
        return SourceUnavailableError(f"{place.url} cannot be reached: {said}")
    for known, part, kind, message in _DEFINITE:
        if code is known and part in said:
            return kind(message.format(url=place.url, said=said))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return OutcomeUnknownError(
            f"{place.url} has no room ({said}), and says so of what it has just done as well: whether it did what was "
            f"asked is unknown. Make room in it"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return OutcomeUnknownError(f"{place.url} did not answer in time: whether it did what was asked is unknown")
    return OutcomeUnknownError(f"{place.url} broke off ({said}): whether it did what was asked is unknown")
