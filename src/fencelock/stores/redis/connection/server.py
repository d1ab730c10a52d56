"""What a server must be before a guard uses it, from what the server says of itself.

Promise: pure. A replica is refused, a server that may evict any key, and one that does not flush what it acknowledges,
unless the URL accepts that: a lost mark is a lost seal, and admits whom it had refused.
Never: a server used before it was examined.
"""

import re
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from fencelock.errors import SourceUnavailableError, UnsupportedError
from fencelock.stores.redis.connection.errors import TRY_LATER, code_of, map_refusal
from fencelock.stores.redis.connection.url import RedisConnectionInfo

PROBE = (
    ("INFO", "server", "replication", "memory", "cluster", "persistence"),
    ("CONFIG", "GET", "appendonly", "appendfsync", "no-appendfsync-on-rewrite"),
    ("MULTI",),
    ("DISCARD",),
)
"""What is asked of each server, in one round trip. Where MULTI is not permitted, what follows it would run at once."""
MIN_MAJOR = 7
"""Older servers know no `#!lua`, by which a script is refused as a whole by a replica, and where there is no room."""
_EVICTS_ANY = "allkeys-"


class ServerFacts(NamedTuple):
    """What a server says of itself; `flush_settings` is None if it does not tell this user."""

    version: str
    role: str
    eviction: str
    is_cluster: bool
    flush_settings: dict[str, str] | None
    begins_log: bool = False
    """Whether `appendonly` was switched on, and the log is not whole yet: a crash loses all that is in it."""

    @property
    def flushes(self) -> bool | None:
        """Whether it flushes what it acknowledges; None: unknown."""
        return None if self.flush_settings is None else self.flush_settings == _FLUSHING and not self.begins_log


_FLUSHING = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
"""With the last one on, a server flushes nothing while a child of it writes a snapshot, or its log anew."""
SET_FLUSHING = "set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no"


def read_facts(info: RedisConnectionInfo, answers: list[Any]) -> ServerFacts:
    """Return what the answers to PROBE say; UnsupportedError if the server does not tell this user enough,
    and SourceUnavailableError if it tells nothing at this moment.
    """
    for answer in answers:
        # Else a server that runs somebody's long script would seem to give this user no rights.
        if isinstance(answer, ResponseError) and code_of(answer) in TRY_LATER:
            raise map_refusal(answer, info, is_read=True)
    report, settings, *transaction = answers
    for answer, command in ((report, "INFO"), *zip(transaction, ("MULTI", "DISCARD"), strict=True)):
        if isinstance(answer, ResponseError):
            raise UnsupportedError(
                f"{info.url} does not let this user run {command}, which a guard needs: permit it (ACL SETUSER … "
                f"+{command.lower()}), as `fencelock protect --print-policy` prints it"
            )
    lines = dict(re.findall(r"^(\w+):(.*?)\r?$", report.decode(errors="replace"), re.MULTILINE))
    flush = None if isinstance(settings, ResponseError) else {k.decode(): v.decode() for k, v in settings.items()}
    return ServerFacts(
        lines.get("redis_version", "0"),
        lines.get("role", "unknown"),
        lines.get("maxmemory_policy", "unknown"),
        lines.get("cluster_enabled") == "1",
        flush,
        flush == _FLUSHING and _begins_log(lines),
    )


def _begins_log(lines: dict[str, str]) -> bool:
    """Return whether the first log of this server is being written; the server acknowledges meanwhile, and flushes to a
    file that it would not read. No server tells it of a log that was switched off and on again.
    """
    is_writing = "1" in {lines.get("aof_rewrite_in_progress"), lines.get("aof_rewrite_scheduled")}
    return is_writing and lines.get("aof_base_size") == "0"


def check_server(info: RedisConnectionInfo, where: object, facts: ServerFacts) -> None:
    """Raise UnsupportedError if a guard cannot rely on this server, SourceUnavailableError if not yet."""
    name = f"{info.url}: the server at {where}"
    if int(re.match(r"\d*", facts.version)[0] or 0) < MIN_MAJOR:  # type: ignore[index]
        raise UnsupportedError(f"{name} has version {facts.version}: a guard needs Redis 7.0, or Valkey")
    # In a cluster, a replica leads each request on to its master.
    if facts.role != "master" and not facts.is_cluster:
        raise UnsupportedError(f"{name} is a replica, which shows old data and takes no writes: name its master")
    if facts.eviction.startswith(_EVICTS_ANY):
        raise UnsupportedError(
            f"{name} may evict any key (maxmemory-policy {facts.eviction}), a mark too: set maxmemory-policy to "
            f"noeviction, or to a volatile- one, which spares keys without an expiry"
        )
    if not facts.flushes and not info.accepts_unflushed:
        kind = SourceUnavailableError if facts.begins_log else UnsupportedError
        raise kind(_unflushed(name, facts))


def _unflushed(name: str, facts: ServerFacts) -> str:
    accept = (
        "or write ?unflushed=accept at the end of the URL, if the guard may be as durable as the data and no more: a "
        "seal that a crash loses may admit the lease that it had refused"
    )
    if facts.flush_settings is None:
        return (
            f"{name} does not tell this user whether it flushes what it acknowledges: permit CONFIG GET (ACL SETUSER "
            f"… +config|get), {accept}"
        )
    if facts.begins_log:
        return (
            f"{name} writes its log for the first time, and a crash before its end loses it: try again when that is "
            f"done, {accept}"
        )
    found = ", ".join(f"{setting} {value}" for setting, value in sorted(facts.flush_settings.items()))
    return f"{name} does not flush all that it acknowledges ({found}): {SET_FLUSHING}, {accept}"
