"""A client that bypasses the guard."""

import weakref
from typing import Any

import redis
from redis.crc import key_slot

from fencelock_lab.servers.redis import RedisCluster, RedisServer


class Direct:
    """Runs commands at one server, over a connection that closes with it."""

    def __init__(self, host: str, port: int, **login: Any) -> None:
        self._connection = redis.Connection(host=host, port=port, driver_info=None, protocol=3, **login)
        # Before the garbage collector ends the socket, which would warn.
        weakref.finalize(self, self._connection.disconnect)

    @classmethod
    def to_slot(cls, servers: RedisCluster, prefix: str) -> "Direct":
        """Return a client of the server that has the slot of a prefix."""
        return cls.to(_server_of(servers, prefix))

    @classmethod
    def to(cls, server: RedisServer, **login: Any) -> "Direct":
        """Return a client of a server."""
        return cls(server.host, server.port, **login)

    def __call__(self, *words: Any) -> Any:
        """Run a command, and return its answer."""
        self._connection.send_command(*words)
        return self._connection.read_response()

    def get(self, key: str) -> str | None:
        """Return the text at a key."""
        found = self("GET", key)
        return None if found is None else found.decode()

    def keys(self, prefix: str) -> list[str]:
        """Return the names of all keys that begin with the braced prefix, without it."""
        begin = f"{{{prefix}}}"
        return sorted(key.decode().removeprefix(begin) for key in self("KEYS", f"{begin}*"))

    def dump(self, prefix: str) -> bytes:
        """Return all keys that begin with the braced prefix, and their values, in no order."""
        reads = {b"string": ("GET",), b"list": ("LRANGE", 0, -1), b"set": ("SMEMBERS",), b"hash": ("HGETALL",)}
        found = []
        for key in self("KEYS", f"{{{prefix}}}*"):
            name, *rest = reads[self("TYPE", key)]
            found.append((key, self(name, key, *rest)))
        return repr(found).encode()


def _server_of(servers: RedisCluster, prefix: str) -> RedisServer:
    slot = key_slot(f"{{{prefix}}}".encode())
    share = -(-16384 // len(servers.servers))
    return servers.servers[slot // share]
