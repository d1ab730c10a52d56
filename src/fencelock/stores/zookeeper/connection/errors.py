"""What kazoo's errors mean: which of them say that nothing was done.

Promise: `definite` is true only where a server itself refused. After a lost connection, a timeout or an ended session
the outcome is unknown. Messages name the servers and the base, never a node's value or a password.
"""

from kazoo import exceptions as kazoo_errors
from kazoo.handlers.threading import KazooTimeoutError

from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.stores.errors import ErrorMapper
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo

OUTCOME_UNKNOWN = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.ConnectionClosedError,
    KazooTimeoutError,
)
"""Errors after which nobody knows whether a request was executed."""


class ZooKeeperTimeoutError(Exception):
    """The servers did not answer in time. Never leaves this package."""


def mapping_errors(info: ZooKeeperConnectionInfo) -> ErrorMapper:
    """Return a context manager that maps the errors of sent requests to FencelockError."""
    return ErrorMapper(lambda error: map_error(error, info))


def map_error(error: BaseException, info: ZooKeeperConnectionInfo) -> SourceError | None:
    """Return the error that an exception of a sent request means; None if it is not ZooKeeper's."""
    if isinstance(error, ZooKeeperTimeoutError):
        return OutcomeUnknownError(f"{info.url} did not answer in time: whether it did what was asked is unknown")
    if isinstance(error, OUTCOME_UNKNOWN):
        what = type(error).__name__
        return OutcomeUnknownError(f"{info.url} broke off ({what}): whether it did what was asked is unknown")
    if isinstance(error, kazoo_errors.ZookeeperError):
        return map_refusal(error, info)
    return None


def map_refusal(error: kazoo_errors.ZookeeperError, info: ZooKeeperConnectionInfo) -> SourceError:
    """Return the error that a server's refusal means: nothing was done."""
    if isinstance(error, kazoo_errors.NoAuthError | kazoo_errors.AuthFailedError | kazoo_errors.InvalidACLError):
        return SourceError(
            f"{info.url} does not permit it ({type(error).__name__}): name a user in the URL who may, or have the "
            f"access lists changed"
        )
    if isinstance(error, kazoo_errors.NotReadOnlyCallError):
        return SourceUnavailableError(f"{info.url} takes no writes now: its server has lost the others")
    return SourceError(f"{info.url} refused: {type(error).__name__}")


def copy_error(error: Exception) -> Exception:
    """Return a copy of an error, to be raised.

    The request's result keeps the original, and a raised error keeps the frames that it passes through: raising the
    original would make a cycle, see `stores/errors.py`.
    """
    return type(error)(*error.args)
