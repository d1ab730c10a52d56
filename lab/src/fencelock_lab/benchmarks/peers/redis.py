"""The lock libraries on Redis, without fencelock: it refuses Redis as a source of tokens."""

from urllib.parse import urlsplit

from fencelock_lab.benchmarks.peers.contender import Calls, Contender, ContenderLock

_LOSES = "no token, and a failover loses acknowledged locks"


def _redis_py(url: str, name: str) -> ContenderLock:
    import redis

    lock = redis.Redis.from_url(url).lock(f"redis-py-{name}", timeout=30)
    return Calls(lock.acquire, lock.release)


def _redis_lock(url: str, name: str) -> ContenderLock:
    import redis
    import redis_lock

    client = redis.Redis.from_url(url)
    locks: list[redis_lock.Lock] = []

    def acquire() -> None:
        locks.append(redis_lock.Lock(client, name, expire=30, auto_renewal=True))
        locks[-1].acquire()

    return Calls(acquire, lambda: locks.pop().release())


def _sherlock(url: str, name: str) -> ContenderLock:
    import redis
    import sherlock

    lock = sherlock.RedisLock(f"sherlock-{name}", client=redis.Redis.from_url(url), expire=30, timeout=600)
    return Calls(lock.acquire, lock.release)


def _pottery(url: str, name: str) -> ContenderLock:
    import pottery
    import redis

    lock = pottery.Redlock(key=name, masters={redis.Redis.from_url(url)}, auto_release_time=30)
    return Calls(lock.acquire, lock.release)


def _portalocker(url: str, name: str) -> ContenderLock:
    import portalocker
    import redis

    lock = portalocker.RedisLock(f"portalocker-{name}", connection=redis.Redis.from_url(url), timeout=600)
    return Calls(lock.acquire, lock.release)


def _tooz(url: str, name: str) -> ContenderLock:
    from tooz import coordination

    coordinator = coordination.get_coordinator(f"redis://{urlsplit(url).netloc}", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(name.encode())
    return Calls(lock.acquire, lock.release)


IMPORTS = ("portalocker", "pottery", "redis", "redis_lock", "sherlock", "tooz.coordination", "tooz.drivers.redis")
CONTENDERS = [
    Contender("redis-py Lock", _redis_py, f"{_LOSES}; no renewal; polls every 0.1 s"),
    Contender("python-redis-lock, renewing", _redis_lock, f"{_LOSES}; a thread for each lock"),
    Contender("sherlock", _sherlock, f"{_LOSES}; no renewal; polls"),
    Contender("pottery Redlock", _pottery, f"{_LOSES}; polls"),
    Contender("tooz", _tooz, f"{_LOSES}; polls"),
    Contender("portalocker RedisLock", _portalocker, f"{_LOSES}; connects anew; polls"),
]
