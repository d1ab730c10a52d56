"""A guard in a cluster of three: it finds its slot, goes along when that moves, and refuses keys of another slot."""

from collections.abc import Iterator

import pytest
from redis.crc import key_slot
from redis.exceptions import MovedError

import fencelock
from fencelock import SourceUnavailableError
from fencelock.stores.redis.connection.client import MAX_IDLE_CONNECTIONS, RedisPool, RedisRequest, RedisSession
from fencelock.stores.redis.connection.connections import FORKS
from fencelock.stores.redis.connection.url import RedisAddress, parse_url
from fencelock_lab.servers.redis import RedisCluster, RedisFleet
from tests.redis.direct import Direct
from tests.redis.fix_redis import THREE, Corner
from tests.redis.guarded import Scene
from tests.support.guards import HandmadeLease


class MovingSlot:
    """The slot of a prefix in a cluster, which another server gets at each move."""

    def __init__(self, cluster: RedisCluster, prefix: str) -> None:
        self.slot = key_slot(f"{{{prefix}}}".encode())
        self.servers = [Direct.to(server) for server in cluster.servers]
        self.addresses = [(server.host, server.port) for server in cluster.servers]
        self.owner = self.slot // -(-16384 // len(self.servers))

    def move(self) -> None:
        """Move the slot with its keys, as `redis-cli --cluster reshard` does."""
        source, self.owner = self.owner, (self.owner + 1) % len(self.servers)
        ids = [server("CLUSTER", "MYID") for server in self.servers]
        old, new = self.servers[source], self.servers[self.owner]
        new("CLUSTER", "SETSLOT", self.slot, "IMPORTING", ids[source])
        old("CLUSTER", "SETSLOT", self.slot, "MIGRATING", ids[self.owner])
        keys = old("CLUSTER", "GETKEYSINSLOT", self.slot, 100)
        old("MIGRATE", *self.addresses[self.owner], "", 0, 5000, "KEYS", *keys)
        for server in (new, old):
            server("CLUSTER", "SETSLOT", self.slot, "NODE", ids[self.owner])

    def get(self, key: str) -> str | None:
        return self.servers[self.owner].get(key)


@pytest.fixture
def moving(redis_fleet: RedisFleet) -> Iterator[tuple[Scene, MovingSlot]]:
    """Yield a scene in a cluster of the test's own, and what moves its slot."""
    servers = [redis_fleet.new_server() for _ in range(THREE)]
    for server in servers:
        server.be_in_cluster()
    with RedisCluster(servers) as cluster:
        yield Scene(Corner(cluster, "app")), MovingSlot(cluster, "app")


def test_a_guard_goes_to_the_server_that_has_its_slot(redis_three: Corner) -> None:
    for server in redis_three.servers.servers:
        scene = Scene(redis_three, url=f"{server.url}/0/{redis_three.prefix}")
        lease = HandmadeLease(scene.guard.mark().token + 1)
        with scene.block(lease) as txn:
            assert txn.get(scene.key("a")) == (None if lease.sequencer.token == 1 else b"x")
            txn.execute("MSET", scene.key("a"), "x", scene.key("b"), "y")
    assert scene.value("b") == "y"


def test_a_key_of_another_slot_is_refused_before_anything_is_written(redis_three: Corner) -> None:
    scene = Scene(redis_three)
    for name in ("outside", "{other}:outside"):
        with pytest.raises(fencelock.GuardError, match=rf"write {{{redis_three.prefix}}} into each key"):
            scene.write(("SET", scene.key("a"), "1"), ("SET", name, "1"))
        with scene.block() as txn, pytest.raises(fencelock.GuardError, match="another slot of the cluster"):
            txn.get(name)
    assert scene.names() == []


def test_a_guard_goes_along_when_its_slot_moves(moving: tuple[Scene, MovingSlot]) -> None:
    scene, slot = moving
    scene.write(("SET", scene.key("a"), "1"))
    slot.move()
    with scene.block() as txn:
        slot.move()
        txn.execute("SET", scene.key("a"), "2")
    assert slot.get(scene.key("a")) == "2"


def test_a_block_that_has_read_ends_when_its_slot_moves(moving: tuple[Scene, MovingSlot]) -> None:
    """The keys that it has read are watched where they were."""
    scene, slot = moving

    def read_and_write() -> None:
        with scene.block() as txn:
            txn.get(scene.key("a"))
            slot.move()
            txn.execute("SET", scene.key("a"), "late")

    with pytest.raises(SourceUnavailableError, match="moved to another server") as caught:
        read_and_write()
    assert caught.value.definite
    assert slot.get(scene.key("a")) is None
    scene.write(("SET", scene.key("a"), "again"))
    assert slot.get(scene.key("a")) == "again"


FORMER, PRESENT = RedisAddress("former", 1), RedisAddress("present", 2)


class Answering:
    """An idle connection to a server that has the slot, or leads on to the one that has it."""

    def __init__(self, address: RedisAddress, asked: list[RedisAddress]) -> None:
        self.address = address
        self._asked = asked
        FORKS.add(self)  # type: ignore[arg-type]

    def is_usable(self) -> bool:
        return True

    def exchange(self, commands: object) -> list[object]:
        self._asked.append(self.address)
        return [MovedError(f"1 {PRESENT}") if self.address == FORMER else b"value"]

    def hang_up(self) -> None:
        """Do nothing."""

    drop = hang_up


def test_idle_connections_to_the_server_that_had_the_slot_are_passed_by() -> None:
    """Each would lead on to the other server, and a request follows a few times only."""
    asked: list[RedisAddress] = []
    pool = RedisPool(parse_url(f"redis://{FORMER}/0/app"), is_examining=False)
    addresses = [PRESENT] + [FORMER] * (MAX_IDLE_CONNECTIONS - 1)
    pool.idle().extend(Answering(address, asked) for address in addresses)  # type: ignore[misc]
    assert RedisSession(pool).send(RedisRequest((("GET", "a"),), is_read=True)) == [b"value"]
    assert asked == [FORMER, PRESENT]
