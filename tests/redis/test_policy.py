"""The rights that `fencelock protect --print-policy` prints: an application does its work, and poisons nobody."""

import os
import subprocess
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

import fencelock
from fencelock import SourceError
from fencelock_lab.servers.redis import RedisServer
from tests.cli.program import Program, program
from tests.redis.direct import Direct
from tests.redis.fix_redis import own_corner
from tests.redis.guarded import protect
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import DEADLINE_S
from tests.support.programs import need

__all__ = ["program"]


@pytest.fixture
def limited(own_redis: RedisServer, program: Program) -> RedisServer:
    """Return a server with marks, after the printed script has run for user `app`, twice."""
    url = f"{own_redis.url}/0/data"
    protect(url, RESOURCE, "salaries")
    words = ("--resource", RESOURCE, "--lock", LOCK, "--roles", "app", "--print-policy")
    printed = program.inside("protect", url, *words)
    assert printed.returncode == 0, printed.stderr
    need("redis-cli")
    script = printed.stdout.replace("redis-cli ", f"redis-cli -h {own_redis.host} -p {own_redis.port} ")
    for _ in range(2):
        done = subprocess.run(
            ["sh", "-e"], input=script, env=os.environ, capture_output=True, text=True, timeout=DEADLINE_S, check=True
        )
        assert done.stdout == "OK\n"
    Direct.to(own_redis)("ACL", "SETUSER", "app", "on", ">secret")
    return own_redis


def test_the_printed_rights_let_an_application_write_its_resource(limited: RedisServer) -> None:
    url = f"redis://app:secret@{limited.address}/0/data"
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    lease = HandmadeLease(5)
    with guard.transaction(lease, once="night") as txn:
        assert txn.read("HGETALL", "{data}:stock") == {}
        txn.execute("HSET", "{data}:stock", "chairs", 7)
        txn.execute("ZUNIONSTORE", "{data}:sum", 1, "{data}:scores")
    with pytest.raises(fencelock.AlreadyDoneError), guard.transaction(lease, once="night"):
        pass
    guard.close(lease)
    with pytest.raises(fencelock.StaleTokenError), guard.transaction(lease):
        pass


def test_the_printed_rights_keep_an_application_from_all_other_marks(limited: RedisServer) -> None:
    corner = own_corner(limited, "data")
    app = Direct.to(limited, username="app", password="secret")
    with pytest.raises(SourceError, match="does not permit it"):
        fencelock.guard(f"redis://app:secret@{limited.address}/0/data", resource="salaries", lock=LOCK).seal(
            HandmadeLease(5)
        )
    for own in ("marks/salaries", f"marks/{RESOURCE}2", "floors", "audit", "resources", "effects/salaries"):
        for command in (("SET", corner.own(own), "forged"), ("DEL", corner.own(own))):
            with pytest.raises(NoPermissionError):
                app(*command)
    for command in (("FLUSHALL",), ("FLUSHDB",), ("CONFIG", "SET", "appendonly", "no"), ("REPLICAOF", "NO", "ONE")):
        with pytest.raises(NoPermissionError):
            app(*command)
    found = fencelock.stores.registry.guard_store(f"redis://app:secret@{limited.address}/0/data")
    assert [one.code for one in found.examine()] == ["guard-refused"]


@pytest.mark.parametrize(
    ("lacking", "command", "named"),
    [
        (("-hgetall",), ("HGETALL", "{data}:stock"), "'hgetall' command"),
        (("-command",), ("HGETALL", "{data}:stock"), "'command|info' command"),
        (("+command|info", "-command|getkeys"), ("ZUNION", 1, "{data}:scores"), "'command|getkeys' command"),
        (("-watch",), ("HGETALL", "{data}:stock"), "'watch' command"),
        ((), ("HGETALL", "elsewhere"), "HGETALL: this user has no permissions to access"),
    ],
    ids=lambda one: one if isinstance(one, str) else " ".join(map(str, one)),
)
def test_a_read_that_is_not_permitted_names_the_right_and_the_remedy(
    limited: RedisServer, lacking: tuple[str, ...], command: tuple[Any, ...], named: str
) -> None:
    """As a write does: nobody has to guess that the server's ACL lacks something."""
    guard = fencelock.guard(f"redis://app:secret@{limited.address}/0/data", resource=RESOURCE, lock=LOCK)
    guard.seal(HandmadeLease(5))
    Direct.to(limited)("ACL", "SETUSER", "app", *lacking)
    with pytest.raises(SourceError, match="does not permit it") as caught, guard.transaction(HandmadeLease(5)) as txn:
        txn.read(*command)
    assert caught.value.definite
    assert named in str(caught.value)
    assert "`fencelock protect --print-policy`" in str(caught.value)


@pytest.mark.parametrize(
    "command", [("HSET", "{data}:stock", "chairs", 7), ("SET", "elsewhere", 1)], ids=lambda words: words[0]
)
def test_a_write_that_is_not_permitted_names_the_right_and_the_remedy(
    limited: RedisServer, command: tuple[Any, ...]
) -> None:
    guard = fencelock.guard(f"redis://app:secret@{limited.address}/0/data", resource=RESOURCE, lock=LOCK)
    Direct.to(limited)("ACL", "SETUSER", "app", "-hset")
    with pytest.raises(SourceError, match="does not permit it") as caught, guard.transaction(HandmadeLease(5)) as txn:
        txn.execute(*command)
    assert caught.value.definite
    assert "`fencelock protect --print-policy`" in str(caught.value)
