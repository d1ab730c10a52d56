"""The guard of Redis keys: marks beside the data, and one script that compares them.

Promise: the constructor opens nothing; all connections of one guard share their idle ones. A mark is as durable as the
data beside it, and no more: an asynchronous failover may lose both. Redis itself refuses nobody who writes past the
guard: its ACL has to, and `examine` reports where it does not.
"""

from redis.exceptions import ResponseError

from fencelock.errors import FencelockError, SourceError
from fencelock.model import Finding
from fencelock.protocol.guard_requests import InspectResources
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.redis.connection.client import RedisClient, RedisRequest, RedisSession, facts_of
from fencelock.stores.redis.connection.url import parse_url
from fencelock.stores.redis.guard.block import MAX_REQUEST_BYTES, MAX_WRITES, Shapes
from fencelock.stores.redis.guard.codec import RedisGuardLayout
from fencelock.stores.redis.guard.connection import AsyncRedisGuardConnection, RedisGuardConnection
from fencelock.stores.redis.policy import guard_policy


class RedisGuard:
    """Guarded keys."""

    capabilities = GuardCapabilities(
        enforced_by="policy",
        speaks_asyncio=True,
        keeps_open=False,
        seal_is_durable=False,
        first_seal_creates=False,
        max_writes=MAX_WRITES,
        max_request_bytes=MAX_REQUEST_BYTES,
    )

    def __init__(self, url: str) -> None:
        self.info = parse_url(url)
        self.url = self.info.url
        self.layout = RedisGuardLayout(self.info)
        self._client = RedisClient(self.info)
        self._shapes: Shapes = {}

    def connect(self) -> RedisGuardConnection:
        """Return a connection for the caller's thread."""
        return RedisGuardConnection(self._client, self._shapes)

    def connect_async(self) -> AsyncRedisGuardConnection:
        """Return a connection for the running loop."""
        return AsyncRedisGuardConnection(self._client, self._shapes)

    def install(self) -> None:
        """Do nothing: `protect` creates what a resource needs."""

    def policy(self, resource: str, lock: str, *roles: str) -> str:
        """Return the commands that let these users write one resource, and no other mark."""
        return "\n".join(guard_policy(self.layout, resource, lock, role) for role in roles)

    def examine(self) -> list[Finding]:
        """Report a server that a guard cannot rely on, what it does not flush, and missing access control."""
        session = RedisSession(self._client)
        try:
            connection = self.connect()
            connection.perform(InspectResources(None))
            connection.close()
            facts = facts_of(session)
            may_delete_all = _may_run(session, ("FLUSHALL",))
        except FencelockError as error:
            return [Finding("guard-refused", str(error), "do what the message says, then run doctor again")]
        finally:
            session.release()
        findings = [] if facts.flushes else [_unflushed_finding(self.url)]
        findings += [_may_delete_all_finding(self.url)] if may_delete_all else []
        return findings + ([_open_to_all_finding(self.url)] if self._is_open_to_all() else [])

    def _is_open_to_all(self) -> bool:
        """Return whether a client without a login could write a mark."""
        tls = self.info.tls and self.info.tls._replace(cert=None, key=None)
        anonymous = RedisClient(self.info._replace(user=None, password=None, tls=tls), is_examining=False)
        session = RedisSession(anonymous)
        try:
            return _may_run(session, ("DEL", self.layout.slot))
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
        f"with the data, and then admits the lease that it had refused, until the live holder's next block raises "
        f"SealLostError",
        "set appendonly yes and appendfsync always, and remove unflushed=accept from the URL",
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
