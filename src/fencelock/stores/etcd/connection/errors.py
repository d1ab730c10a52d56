"""What gRPC's errors mean when they come from etcd: which of them say that nothing was done.

Promise: `definite` is true only where the server itself refused, or was never reached. After any other error, above all
a timeout or a broken connection, the outcome is unknown. Messages name the members, never a key's value or a password.
"""

from typing import Any

import grpc

from fencelock._grpc_wire import UNREACHED
from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError, UnsupportedError
from fencelock.stores.etcd.connection.url import EtcdConnectionInfo

_STALE_LOGIN = ("invalid auth token", "revision of auth store is old")
_NO_ROOM = "database space exceeded"
_ELSEWHERE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
}


class LeaseGoneError(SourceError):
    """etcd does not know the lease, or no longer; nothing was done. Never leaves this package."""


class LeaseExistsError(SourceError):
    """etcd has a lease with this id already. Never leaves this package."""


class CompactedError(SourceError):
    """etcd no longer keeps the requested revision. Never leaves this package."""


_DEFINITE: tuple[tuple[grpc.StatusCode, str, type[SourceError], str], ...] = (
    (grpc.StatusCode.NOT_FOUND, "lease not found", LeaseGoneError, "{url} does not know the lease"),
    (grpc.StatusCode.FAILED_PRECONDITION, "lease already exists", LeaseExistsError, "{url} has this lease already"),
    (grpc.StatusCode.OUT_OF_RANGE, "compacted", CompactedError, "{url} has compacted that revision"),
    (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "too many requests",
        SourceUnavailableError,
        "{url} could not do it now ({details}): try again",
    ),
    (
        grpc.StatusCode.PERMISSION_DENIED,
        "",
        SourceError,
        "{url} does not permit it ({details}): grant the URL's user a role that may read and write the prefix",
    ),
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        "user name is empty",
        SourceError,
        "{url} requires a login ({details}): write user and password into the URL, etcd://user:password@…",
    ),
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        "authentication failed",
        SourceError,
        "{url} refused the URL's user or password ({details})",
    ),
    (
        grpc.StatusCode.FAILED_PRECONDITION,
        "authentication is not enabled",
        SourceError,
        "{url} knows no logins ({details}): leave user and password out of the URL, or run `etcdctl auth enable`",
    ),
    (
        grpc.StatusCode.UNIMPLEMENTED,
        "",
        UnsupportedError,
        "{url} does not support the request ({details}): etcd 3.4 or newer is needed",
    ),
    (grpc.StatusCode.INVALID_ARGUMENT, "", SourceError, "{url} refused: {details}"),
    (grpc.StatusCode.FAILED_PRECONDITION, "", SourceError, "{url} refused: {details}"),
    (grpc.StatusCode.UNAUTHENTICATED, "", SourceError, "{url} refused the login: {details}"),
    (grpc.StatusCode.OUT_OF_RANGE, "", SourceError, "{url} refused: {details}"),
    (grpc.StatusCode.NOT_FOUND, "", SourceError, "{url} refused: {details}"),
)
"""What a status means when etcd itself reports that nothing was done; the first match applies."""


def _details(error: Any) -> str:
    return " ".join(str(error.details() or error.code().name).split())


def was_never_sent(error: Any) -> bool:
    """Return whether the request was never sent."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and _details(error).startswith(UNREACHED)


def is_stale_login(error: Any) -> bool:
    """Return whether etcd wants a newer token for the URL's user; nothing was done."""
    return _details(error).endswith(_STALE_LOGIN)


def is_not_permitted(error: SourceError) -> bool:
    """Return whether a FencelockError means that etcd's roles forbid the request to the URL's user."""
    cause = error.__cause__
    return isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.PERMISSION_DENIED


def was_answered(error: SourceError) -> bool:
    """Return whether a FencelockError is etcd's own answer: the request is not under way any more."""
    cause = error.__cause__
    if not isinstance(cause, grpc.RpcError) or may_succeed_elsewhere(cause):
        return False
    return error.definite or _NO_ROOM in _details(cause)


def may_succeed_elsewhere(error: Any) -> bool:
    """Return whether another member may answer."""
    return error.code() in _ELSEWHERE


def login_failed(info: EtcdConnectionInfo, error: SourceError) -> SourceError:
    """Return the error for a request that was not sent, because the login before it ended with this error."""
    return SourceUnavailableError(f"{info.url} did not log this client in, so the request was not sent: {error}")


def map_login_error(error: Any, info: EtcdConnectionInfo) -> SourceError:
    """Return the error that a failed login means: always a definite one."""
    mapped = map_error(error, info)
    return mapped if mapped.definite else login_failed(info, mapped)


def out_of_time(info: EtcdConnectionInfo) -> SourceError:
    """Return the error for a request that was not sent, because what came before it took all of its time."""
    return SourceUnavailableError(
        f"{info.url} did not answer in time what comes before the request, such as the login: the request was not sent"
    )


def map_error(error: Any, info: EtcdConnectionInfo) -> SourceError:
    """Return the error that a failed call means."""
    code, details = error.code(), _details(error)
    if was_never_sent(error):
        return SourceUnavailableError(f"{info.url} cannot be reached: {details}")
    for known, part, kind, message in _DEFINITE:
        if code is known and part in details:
            return kind(message.format(url=info.url, details=details))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return OutcomeUnknownError(
            f"{info.url} has no room ({details}). etcd says so even of a request that it has just executed, so "
            f"whether it did what was asked is unknown. Make room in it"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return OutcomeUnknownError(f"{info.url} did not answer in time: whether it did what was asked is unknown")
    return OutcomeUnknownError(f"{info.url} broke off ({details}): whether it did what was asked is unknown")
