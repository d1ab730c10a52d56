"""Opening a connection to the first of the URL's servers that takes writes, for a caller's thread and for a loop.

Promise: one attempt for each address, none of which waits longer than the caller's limit. What was opened in vain is
closed. The error names why each address failed, and never a password.
"""

from typing import TypedDict

import pymysql

from fencelock._threads import is_start_failure, start_error
from fencelock.stores.mysql.connection.client import FORKS, MAX_CONNECT_S, AsyncMySQLConnection, MySQLConnection
from fencelock.stores.mysql.connection.errors import is_login_refused, message_of, missing_package, not_connected
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo, async_client_arguments, client_arguments

_IS_WRITABLE = "SELECT CONCAT(@@global.read_only) IN ('0', 'OFF')"


class _Limits(TypedDict):
    connect_s: float
    lock_wait_s: int


def open_connection(
    info: MySQLConnectionInfo,
    request_timeout_s: float,
    kind: type[MySQLConnection] = MySQLConnection,
    *,
    lock_wait_s: int | None = None,
) -> MySQLConnection:
    """Return an open connection in autocommit mode to the first server that takes writes; SourceUnavailableError if
    there is none, SourceError if each refused the login. `lock_wait_s` bounds how long a statement waits for a row; by
    default less than `request_timeout_s`.
    """
    failures, refused = [], 0
    limits = _limits(request_timeout_s, lock_wait_s)
    for address in info.addresses:
        native = kind(**client_arguments(info, address, **limits), defer_connect=True)
        FORKS.add(native)
        try:
            native.open_to(info, request_timeout_s)
            if len(info.addresses) == 1 or _is_writable(native):
                return native
            failures.append(f"{address.host}:{address.port} takes no writes")
        except pymysql.Error as error:
            failures.append(message_of(error))
            refused += is_login_refused(error)
        except RuntimeError as error:
            FORKS.close(native)
            raise missing_package(error, info) from error
        FORKS.close(native)
    raise not_connected(info, failures, refused)


async def open_async_connection(
    info: MySQLConnectionInfo,
    request_timeout_s: float,
    kind: type[AsyncMySQLConnection] = AsyncMySQLConnection,
    *,
    lock_wait_s: int | None = None,
) -> AsyncMySQLConnection:
    """Return an open connection of the running loop; otherwise as `open_connection`."""
    failures, refused = [], 0
    limits = _limits(request_timeout_s, lock_wait_s)
    for address in info.addresses:
        native = kind(**async_client_arguments(info, address, **limits))
        FORKS.add(native)
        try:
            await native.open_to(info, request_timeout_s)
            if len(info.addresses) == 1 or await _is_writable_async(native):
                return native
            failures.append(f"{address.host}:{address.port} takes no writes")
        except (pymysql.Error, TimeoutError) as error:
            failures.append(message_of(error))
            refused += is_login_refused(error)
        except RuntimeError as error:
            FORKS.close(native)
            # The loop resolves a host's name in a thread.
            raise (start_error(error) if is_start_failure(error) else missing_package(error, info)) from error
        FORKS.close(native)
    raise not_connected(info, failures, refused)


def _limits(request_timeout_s: float, lock_wait_s: int | None) -> _Limits:
    return {
        "connect_s": min(MAX_CONNECT_S, request_timeout_s),
        # Less than the client waits, so that no statement goes on waiting in the server after its client has gone.
        "lock_wait_s": lock_wait_s or max(1, int(request_timeout_s) - 1),
    }


def _is_writable(native: MySQLConnection) -> bool:
    with native.cursor() as cursor:
        cursor.execute(_IS_WRITABLE)
        return cursor.fetchone() == (1,)  # type: ignore[no-any-return]


async def _is_writable_async(native: AsyncMySQLConnection) -> bool:
    async with native.cursor() as cursor:
        await cursor.execute(_IS_WRITABLE)
        return await cursor.fetchone() == (1,)  # type: ignore[no-any-return]
