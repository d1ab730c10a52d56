"""The lock libraries on PostgreSQL."""

from typing import Any
from urllib.parse import urlsplit

from fencelock_lab.benchmarks.peers.contender import Calls, Contender, ContenderLock
from fencelock_lab.benchmarks.peers.ours import OURS

_ADVISORY = "no token, no lease: held by a connection that nothing watches"


def _by_hand(url: str, _name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.postgres import PostgresHandWrittenLock

    lock = PostgresHandWrittenLock(url)
    return Calls(lock.take, lock.free)


def _advisory(url: str, _name: str) -> ContenderLock:
    import psycopg

    run = psycopg.connect(url, autocommit=True).execute
    return Calls(
        lambda: run("SELECT pg_advisory_lock(17)", prepare=True).fetchone(),
        lambda: run("SELECT pg_advisory_unlock(17)", prepare=True).fetchone(),
    )


def _tooz(url: str, name: str) -> ContenderLock:
    from tooz import coordination

    coordinator = coordination.get_coordinator(url, b"bench")
    coordinator.start()
    lock = coordinator.get_lock(name.encode())
    return Calls(lock.acquire, lock.release)


def _pals(url: str, name: str) -> ContenderLock:
    import pals

    locker = pals.Locker("bench", url.replace("postgresql://", "postgresql+psycopg2://"))
    lock = locker.lock(name, acquire_timeout=600_000)
    return Calls(lock.acquire, lock.release)


def _django(url: str) -> None:
    import django
    from django.conf import settings

    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": parts.username,
        "NAME": parts.path.lstrip("/"),
        "CONN_MAX_AGE": None,
    }
    settings.configure(DATABASES={"default": database}, INSTALLED_APPS=["pgactivity", "pglock"], DEBUG=False)
    django.setup()


def _pglock(url: str, name: str) -> ContenderLock:
    _django(url)
    import pglock

    return _entered(lambda: pglock.advisory(name))


def _pglocks(url: str, name: str) -> ContenderLock:
    _django(url)
    from django_pglocks import advisory_lock

    return _entered(lambda: advisory_lock(name))


def _entered(make: Any) -> ContenderLock:
    """Return a lock whose handle is a context manager that is created for each use."""
    held: list[Any] = []

    def acquire() -> None:
        held.append(make())
        held[-1].__enter__()

    def release() -> None:
        held.pop().__exit__(None, None, None)

    return Calls(acquire, release)


def _sentinel(url: str, name: str) -> ContenderLock:
    import psycopg
    import sentinel
    from sentinel import core

    connection = psycopg.connect(url)
    sentinel.init_db(connection)
    connection.commit()
    tokens: list[int] = []

    def acquire() -> None:
        taken = core.acquire(connection, name, owner_id="bench", ttl_ms=30_000)
        assert taken.acquired
        tokens.append(taken.fencing_token)

    def release() -> None:
        assert core.release(connection, name, owner_id="bench", fencing_token=tokens.pop())

    return Calls(acquire, release)


IMPORTS = (
    "django",
    "pals",
    "pglock",
    "psycopg",
    "psycopg2",
    "sentinel.core",
    "tooz.coordination",
    "tooz.drivers.pgsql",
)
CONTENDERS = [
    Contender("two statements by hand", _by_hand, "no waiting, no renewal, no crash detection", can_wait=False),
    *OURS,
    Contender("advisory lock by hand", _advisory, _ADVISORY),
    Contender("django-pglock", _pglock, _ADVISORY),
    Contender("django-pglocks", _pglocks, _ADVISORY),
    Contender("PALs", _pals, _ADVISORY),
    Contender("tooz", _tooz, "no token, no lease, names of 16 bits; connects anew for each acquire", can_wait=False),
    Contender(
        "sentinel-coordination",
        _sentinel,
        "its token is a bare sequence, not safe in a crash; no waiting, nothing enforced outside its own row",
        can_wait=False,
    ),
]
