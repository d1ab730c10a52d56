"""What redis-py's errors mean: which of them say that nothing was done.

Promise: `definite` is true where the server itself refused, and where the request only reads. After a lost connection
or a timeout, the outcome of a request that may write is unknown. Messages name the servers and the prefix, never a key,
a value or a password.
"""

from redis.exceptions import AuthenticationError, AuthorizationError, BusyLoadingError, RedisError, ResponseError

from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.stores.encoding import shorten
from fencelock.stores.errors import not_permitted
from fencelock.stores.redis.connection.url import RedisConnectionInfo

TRY_LATER = {
    "OOM": "has no room left (OOM): raise its maxmemory, or delete something",
    "READONLY": "is a replica now, and takes no writes: name the server that does",
    "NOREPLICAS": "has lost replicas, and takes no writes (NOREPLICAS)",
    "MISCONF": "cannot write to its disk, and takes no writes (MISCONF)",
    "MASTERDOWN": "is a replica that has lost its master (MASTERDOWN)",
    "LOADING": "is loading its data (LOADING)",
    "BUSY": "runs somebody's long script (BUSY)",
    "CLUSTERDOWN": "lacks a part of its cluster (CLUSTERDOWN)",
    "TRYAGAIN": "is moving the keys to another server of the cluster (TRYAGAIN)",
    "ASK": "is moving the keys to another server of the cluster (ASK)",
    "MOVED": "no longer has the keys: they have moved to another server of the cluster (MOVED)",
}
"""Refusals of a whole request that a later one may not meet."""
_REFUSED = {"NOPERM", "NOAUTH", "WRONGTYPE", "CROSSSLOT", "EXECABORT", "NOPROTO"}
"""Refusals of a whole request."""


def code_of(error: ResponseError) -> str:
    """Return the first word of the server's answer, which says what kind of error it is."""
    return error.status_code or str(error).partition(" ")[0]


def map_refusal(error: ResponseError, info: RedisConnectionInfo, *, is_read: bool) -> SourceError:
    """Return the error that a server's answer means."""
    code = code_of(error)
    if code in TRY_LATER:
        return SourceUnavailableError(f"{info.url} {TRY_LATER[code]}. Nothing was done: try again")
    if code == "NOPERM":
        return lacks_right(info, str(error))
    answer = shorten(f"{code} {str(error).removeprefix(f'{code} ')}")
    if is_read or code in _REFUSED:
        return SourceError(f"{info.url} refused: {answer}")
    return OutcomeUnknownError(f"{info.url} answered {answer!r}: whether it did what was asked is unknown")


def lacks_right(info: RedisConnectionInfo, message: str) -> SourceError:
    """Return the error for a command, or a key, that the server's ACL does not give to this user."""
    remedy = (
        "name a user in the URL who may, or have the server's ACL changed as `fencelock protect --print-policy` prints "
        "it"
    )
    return not_permitted(info.url, shorten(message), remedy)


def map_lost(error: RedisError, info: RedisConnectionInfo, *, is_read: bool) -> SourceError:
    """Return the error for a request that got no answer."""
    if isinstance(error, BusyLoadingError):
        return map_refusal(ResponseError(str(error), status_code="LOADING"), info, is_read=True)
    if isinstance(error, AuthenticationError | AuthorizationError):
        return refused_login(info)
    if is_read:
        return SourceUnavailableError(
            f"{info.url} did not answer ({type(error).__name__}); the request only reads, so nothing was done. Try "
            f"again"
        )
    return OutcomeUnknownError(
        f"{info.url} broke off ({type(error).__name__}): whether it did what was asked is unknown"
    )


def refused_database(error: ResponseError, info: RedisConnectionInfo) -> SourceError | None:
    """Return the error for a database that the server does not have; None for another refusal."""
    said = str(error)
    if "DB index" not in said and "SELECT is not allowed" not in said:
        return None
    return SourceError(
        f"{info.url} has no database {info.database} ({shorten(said)}): correct the number in the URL. A cluster has 0 "
        f"only"
    )


def refused_login(info: RedisConnectionInfo) -> SourceError:
    """Return the error for a login that the server refuses, or misses."""
    who = "requires a login" if info.password is None else "refuses the login of the URL"
    return SourceError(f"{info.url} {who}: write redis://user:password@… with a user of the server's ACL")
