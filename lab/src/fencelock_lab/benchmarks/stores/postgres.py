"""A private PostgreSQL server for the benchmarks, and the work by hand on it.

By hand: what an expert in PostgreSQL would write for one lock with a token, and nothing around it: a row, a
sequence under a bound that is durable already, the server's clock, one function to take and one to free, neither
flushed, prepared statements. What it lacks: waiting, renewal, the refusal of late duplicates, the notice of a recovery,
rights, errors, and every check of what the user passes.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg

import fencelock
from fencelock.protocol import boottime_us, digest_of_claim, draw_claim
from fencelock_lab.benchmarks.stores import CONNECTIONS, PREFIX, Operation, Site, install
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.postgres import PostgresFleet

VERSION = os.environ.get("BENCH_POSTGRES", "15")
TTL_MS = 30_000
HEAD_WAIT_MS, MAX_WAITERS = 1000, 10_000
"""What fencelock's clients pass to `acquire`."""
_SETTINGS = """
SELECT set_config('synchronous_commit', 'off', false), set_config('enable_seqscan', 'off', false),
       set_config('jit', 'off', false), set_config('plan_cache_mode', 'force_generic_plan', false)
"""
_ACQUIRE = """
SELECT outcome, token, time_ms, now_us, source_id, epoch, history_id
FROM fencelock.acquire(%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_RELEASE = "SELECT was_held, now_us FROM fencelock.release(%s, %s, %s)"
_BY_HAND = """
CREATE SEQUENCE IF NOT EXISTS by_hand_token;
CREATE TABLE IF NOT EXISTS by_hand_bound (bound bigint PRIMARY KEY);
INSERT INTO by_hand_bound VALUES (1 << 30) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS by_hand (name bytea PRIMARY KEY, token bigint, claim text, holder text, deadline timestamptz)
WITH (fillfactor = 50);
INSERT INTO by_hand (name) VALUES ('bench') ON CONFLICT DO NOTHING;
CREATE OR REPLACE FUNCTION by_hand_take(p_name bytea, p_claim text, p_holder text, p_ttl_ms bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    UPDATE by_hand SET token = nextval('by_hand_token'), claim = p_claim, holder = p_holder,
                       deadline = clock_timestamp() + p_ttl_ms * interval '1 ms'
    FROM by_hand_bound AS b
    WHERE name = p_name AND (claim IS NULL OR deadline <= clock_timestamp()) AND b.bound > 0
    RETURNING token
$$;
CREATE OR REPLACE FUNCTION by_hand_free(p_name bytea, p_claim text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    UPDATE by_hand SET claim = NULL WHERE name = p_name AND claim = p_claim RETURNING true
$$;
"""


_FILL = """
INSERT INTO fencelock.lock (name, token, ended)
SELECT convert_to('lock-' || number, 'UTF8'), number + 1, 'it was released' FROM generate_series(0, {count}) AS number;
SELECT setval('fencelock.token', {count} + 2);
"""


@contextmanager
def site() -> Iterator[Site]:
    """Yield a database with fencelock's schema, on a temporary server."""
    with fleet_of(PostgresFleet, PREFIX, on_disk=True) as fleet:
        server = fleet.new_server(VERSION)
        server.settings["max_connections"] = CONNECTIONS
        server.start()
        url = server.url(dbname="postgres")
        install(url)
        ((version,),) = server.rows("SHOW server_version")
        yield Site("postgres", f"PostgreSQL {version.split()[0]}", url, server)


@contextmanager
def by_hand(site: Site) -> Iterator[dict[str, Operation]]:
    """Yield empty round trips, hand-written locks, and fencelock's own statements."""
    floor, same = PostgresHandWrittenLock(site.url), PostgresSameCalls(site.url)
    with closing(floor.connection), closing(same.connection):
        yield {
            "two statements by hand": floor.cycle,
            "fencelock's two statements by hand": same.cycle,
            "two empty trips": floor.empty_trips,
            "an advisory lock: no token, no lease": floor.advisory,
        }


def fill(url: str, count: int) -> str:
    """Fill a separate database."""
    name = f"with_{count}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    url = url.rpartition("/")[0] + f"/{name}"
    install(url)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(_FILL.format(count=count).encode())
    return url


class PostgresHandWrittenLock:
    """Take and free a lock by two statements."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(_BY_HAND.encode())
        self.connection.execute("SET synchronous_commit = off")
        self._claim = ""

    def take(self) -> None:
        """Take the lock."""
        self._claim = draw_claim()
        parameters = (b"bench", self._claim, "somebody", TTL_MS)
        taken = self.connection.execute("SELECT by_hand_take(%s, %s, %s, %s)", parameters, prepare=True).fetchone()
        assert taken is not None
        assert taken[0] is not None

    def free(self) -> None:
        """Free it."""
        self.connection.execute("SELECT by_hand_free(%s, %s)", (b"bench", self._claim), prepare=True).fetchone()

    def cycle(self) -> None:
        """Take the lock and free it."""
        self.take()
        self.free()

    def empty_trips(self) -> None:
        """Make two empty round trips."""
        self.connection.execute("SELECT 1", prepare=True).fetchone()
        self.connection.execute("SELECT 1", prepare=True).fetchone()

    def advisory(self) -> None:
        """Take and free an advisory lock: no token, no lease, gone with the connection."""
        self.connection.execute("SELECT pg_advisory_lock(17)", prepare=True).fetchone()
        self.connection.execute("SELECT pg_advisory_unlock(17)", prepare=True).fetchone()


class PostgresSameCalls:
    """The two statements of fencelock's clients by hand; the difference to fencelock is the cost of its Python code."""

    def __init__(self, url: str) -> None:
        with fencelock.connect(url) as source, source.lock("bench-same"):
            pass  # The first grant makes the row.
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(_SETTINGS.encode())
        self._ahead_us = 0
        """How far the server's clock is ahead of this machine's time since the boot."""
        self._release("nobody")

    def cycle(self) -> None:
        """Take the lock and free it."""
        claim = draw_claim()
        born_us = boottime_us() + self._ahead_us
        digest = digest_of_claim(claim)
        parameters = (b"bench-same", digest, "somebody", TTL_MS, born_us, "wait", None, HEAD_WAIT_MS, MAX_WAITERS)
        granted = self.connection.execute(_ACQUIRE.encode(), parameters, prepare=True).fetchone()
        assert granted is not None
        assert granted[0] == "granted", granted
        self._release(claim)

    def _release(self, claim: str) -> None:
        freed = self.connection.execute(_RELEASE.encode(), (b"bench-same", claim, 0), prepare=True).fetchone()
        assert freed is not None
        self._ahead_us = freed[1] - boottime_us()
