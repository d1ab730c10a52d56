"""What breaks the guarantees of a guard at Redis, for `fencelock doctor`.

Promise: nothing is written: a command whose right is tried is queued, and discarded.
"""

from redis.exceptions import ResponseError

from fencelock.errors import FencelockError, SourceError
from fencelock.model import Finding
from fencelock.protocol.guard_requests import InspectResources
from fencelock.stores.errors import refused_finding
from fencelock.stores.optimistic.connection import OptimisticConnection
from fencelock.stores.redis.connection.client import RedisPool, RedisRequest, RedisSession, facts_of
from fencelock.stores.redis.connection.server import SET_FLUSHING
from fencelock.stores.redis.connection.url import RedisConnectionInfo
from fencelock.stores.redis.guard.codec import RedisGuardCodec
from fencelock.stores.redis.guard.layout import RedisLayout


def examine(
    info: RedisConnectionInfo, layout: RedisLayout, pool: RedisPool, connection: OptimisticConnection[RedisGuardCodec]
) -> list[Finding]:
    """Return what is wrong with the set-up."""
    session = RedisSession(pool)
    try:
        connection.perform(InspectResources(None))
        connection.close()
        facts = facts_of(session)
        may_delete_all = _may_run(session, ("FLUSHALL",))
    except FencelockError as error:
        return [refused_finding("guard-refused", error)]
    finally:
        session.release()
    findings = [] if facts.flushes else [_unflushed_finding(info.url)]
    findings += [_may_delete_all_finding(info.url)] if may_delete_all else []
    return findings + ([_open_to_all_finding(info.url)] if _is_open_to_all(info, layout) else [])


def _is_open_to_all(info: RedisConnectionInfo, layout: RedisLayout) -> bool:
    """Return whether a client without a login could write a mark."""
    tls = info.tls and info.tls.anonymous()
    anonymous = RedisPool(info._replace(user=None, password=None, tls=tls), is_examining=False)
    session = RedisSession(anonymous)
    try:
        return _may_run(session, ("DEL", layout.slot))
    except SourceError:
        return False
    finally:
        session.release()


def _may_run(session: RedisSession, command: tuple[str | bytes, ...]) -> bool:
    """Return whether the session's user may run a command, which is not run: the server checks before it queues."""
    _, queued, _ = session.send(RedisRequest((("MULTI",), command, ("DISCARD",)), is_read=True))
    return not isinstance(queued, ResponseError)


def _unflushed_finding(url: str) -> Finding:
    return Finding(
        "unflushed",
        f"{url}: the server does not flush what it acknowledges, or does not tell: a crash may lose a seal together "
        f"with the data, and then admits the lease that it had refused, until a later holder seals",
        f"{SET_FLUSHING}, and remove unflushed=accept from the URL",
    )


def _may_delete_all_finding(url: str) -> Finding:
    return Finding(
        "may-delete-all",
        f"{url}: the user of this URL may run FLUSHALL, which deletes the marks too",
        "take it away: ACL SETUSER … -@dangerous, as `fencelock protect --print-policy` prints it",
    )


def _open_to_all_finding(url: str) -> Finding:
    return Finding(
        "open-to-all",
        f"{url}: everybody may write every key, with or without a token: the server requires no login, and by itself "
        f"it refuses nobody",
        "give the default user a password, or no rights (ACL SETUSER default off), name a user in the URLs of the "
        "applications that use the guard, and print that user's rights by `fencelock protect --print-policy`",
    )
