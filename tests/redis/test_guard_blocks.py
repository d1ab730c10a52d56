"""What a guarded block can do at Redis: reads at once, one script at its end, and nothing that its keys do not show."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import (
    BlockLostError,
    ConfigError,
    EffectInDoubtError,
    GuardError,
    OutcomeUnknownError,
    SealLostError,
    SourceUnavailableError,
    StaleTokenError,
)
from fencelock.stores.redis.guard import block
from fencelock.stores.redis.guard.commands import MAX_WORDS
from fencelock_lab.servers.redis import RedisServer
from tests.redis.fix_redis import Corner, own_corner
from tests.redis.guarded import Scene, protect
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import meanwhile


@pytest.fixture
def scene(redis: Corner) -> Scene:
    return Scene(redis)


# --- reads and writes -------------------------------------------------------------------------------------------------
def test_a_block_reads_at_once_and_writes_at_its_end(redis_of_each_kind: Corner) -> None:
    scene = Scene(redis_of_each_kind)
    scene.direct("SET", scene.key("a"), "1")
    scene.direct("SET", scene.key("b"), b"\xff\x00")
    with scene.block() as txn:
        assert txn.get(scene.key("a")) == b"1"
        assert txn.get(scene.key("b").encode()) == b"\xff\x00"
        assert txn.get(scene.key("c")) is None
        txn.execute("SET", scene.key("c"), "3")
        txn.execute("set", scene.key("c"), 4)
        txn.execute("DEL", scene.key("a"), scene.key("never-was"))
        assert scene.value("c") is None
    assert (scene.value("a"), scene.value("c")) == (None, "4")


def test_answers_have_the_types_of_resp3(scene: Scene) -> None:
    scene.write(
        ("HSET", scene.key("hash"), "f", 1.5, "g", b"\xff"),
        ("RPUSH", scene.key("list"), "a", "b"),
        ("SADD", scene.key("set"), "x"),
        ("ZADD", scene.key("scores"), 2.5, "m"),
    )
    with scene.block() as txn:
        assert txn.read("HGETALL", scene.key("hash")) == {b"f": b"1.5", b"g": b"\xff"}
        assert txn.read("LRANGE", scene.key("list"), 0, -1) == [b"a", b"b"]
        assert txn.read("SMEMBERS", scene.key("set")) == [b"x"]
        assert txn.read("ZSCORE", scene.key("scores"), "m") == 2.5
        assert txn.read("EXISTS", scene.key("list"), scene.key("nothing")) == 1
        assert txn.read("ZUNION", 2, scene.key("scores"), scene.key("set")) == [b"x", b"m"]


def test_a_command_may_have_an_underscore_in_its_name(scene: Scene) -> None:
    scene.direct("SET", scene.key("bits"), b"\x07")
    with scene.block() as txn:
        assert txn.read("BITFIELD_RO", scene.key("bits"), "GET", "u8", 0) == [7]
        with pytest.raises(GuardError, match="may wait, or touches more than the keys that it names"):
            txn.read("EVAL_RO", "return 1", 1, scene.key("bits"))


def test_numbers_beyond_the_doubles_stay_what_they_are(scene: Scene) -> None:
    """Lua's numbers are doubles, and no value becomes one."""
    scene.write(("SET", scene.key("n"), 2**63 - 2), ("INCR", scene.key("n")))
    with scene.block() as txn:
        assert txn.get(scene.key("n")) == b"9223372036854775807"
    scene.write(("SET", scene.key("n"), "last"), lease=HandmadeLease(2**53 + 1))
    with pytest.raises(StaleTokenError):
        scene.write(("SET", scene.key("n"), "stale"), lease=HandmadeLease(2**53))
    assert scene.value("n") == "last"


def test_an_exception_leaves_nothing(scene: Scene) -> None:
    with contextlib.suppress(ZeroDivisionError), scene.block() as txn:
        txn.get(scene.key("a"))
        txn.execute("SET", scene.key("a"), "1")
        raise ZeroDivisionError
    assert scene.names() == []
    scene.write(("SET", scene.key("a"), "2"))
    assert scene.value("a") == "2"


def test_several_resources_are_written_in_one_block(redis: Corner) -> None:
    protect(redis.url, "r", "s/t")
    guard = fencelock.guard(redis.url, resources=["r", "s/t"], lock=LOCK)
    with guard.transaction(HandmadeLease(5)) as txn:
        txn.execute("MSET", redis.key("r"), "1", redis.key("s"), "2")
    assert redis.direct.get(redis.key("s")) == "2"
    meanwhile(lambda: fencelock.guard(redis.url, resource="s/t", lock=LOCK).seal(HandmadeLease(6)))
    with pytest.raises(StaleTokenError), guard.transaction(HandmadeLease(5)):
        pass


# --- what is refused before anything is sent --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("GET", "k"), "does not write: use txn.read"),
        (("FLUSHDB",), "touches more than the keys that it names"),
        (("FLUSHALL",), "touches more than the keys that it names"),
        (("EVAL", "return 1", 0), "does not tell whether it reads or writes"),
        (("BLPOP", "k", 0), "may wait"),
        (("SORT", "k", "STORE", "other"), "touches more than the keys that it names"),
        (("PUBLISH", "k", "v"), "does not tell whether it reads or writes"),
        (("NOSUCH", "k"), "has no command NOSUCH"),
        (("XGROUP", "CREATE", "k", "g", "$"), "XGROUP has subcommands, and a guarded block runs none"),
        (("SET", "k"), "takes another number of them"),
        (("INCR", "k", "2"), "takes another number of them"),
        (("ZUNIONSTORE", "k", "two", "a", "b"), "finds no keys in ZUNIONSTORE"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_that_a_block_cannot_run_refuses_all_of_it(scene: Scene, command: tuple[Any, ...], why: str) -> None:
    with pytest.raises(GuardError, match=why) as caught:
        scene.write(("SET", scene.key("a"), "1"), command)
    assert caught.value.definite
    assert scene.names() == []


def test_a_read_that_may_write_or_names_no_key_is_refused(scene: Scene) -> None:
    with scene.block() as txn:
        for command in (("SET", "k", "v"), ("KEYS", "*"), ("SCAN", 0), ("RANDOMKEY",), ("XREAD", "STREAMS", "k", "0")):
            with pytest.raises(GuardError, match=r"may write|cannot be run"):
                txn.read(*command)
        for command in (("XINFO", "STREAM", "k"), ("OBJECT", "ENCODING", "k"), ("XGROUP", "CREATE", "k", "g", "$")):
            with pytest.raises(GuardError, match=f"{command[0]} has subcommands, and a guarded block runs none"):
                txn.read(*command)


def test_the_server_is_asked_once_for_the_keys_of_a_command(scene: Scene) -> None:
    """Whatever the block reads afterwards; and anew for other arguments, which may say that other words are keys."""
    asked: list[Any] = []
    with scene.block() as txn:
        act = txn._session._act

        def noting(step: Any) -> Any:
            asked.extend(words for words in getattr(step, "commands", ()) if words[:2] == ("COMMAND", "GETKEYS"))
            return act(step)

        txn._session._act = noting
        txn.execute("ZUNIONSTORE", scene.key("sum"), 1, scene.key("a"), "WEIGHTS", 2)
        txn.execute("ZUNIONSTORE", scene.key("more"), 2, scene.key("a"), scene.key("b"))
        for name in ("c", "d", "e"):
            txn.get(scene.key(name))
        with pytest.raises(GuardError, match="read first, then write"):
            txn.get(scene.key("b"))
    assert len(asked) == 2


@pytest.mark.parametrize("own", ["marks/reports", "marks/other", "floors", "audit", "resources", "effects/reports"])
def test_the_guards_own_keys_are_out_of_reach(scene: Scene, own: str) -> None:
    key = scene.corner.own(own)
    for command in (("DEL", key), ("COPY", scene.key("a"), key), ("ZUNIONSTORE", key, 1, scene.key("a"))):
        with pytest.raises(GuardError, match="is the guard's own"):
            scene.write(command)
    with scene.block() as txn, pytest.raises(GuardError, match="is the guard's own"):
        txn.get(key)


def test_a_block_reads_first_and_then_writes(scene: Scene) -> None:
    with scene.block() as txn:
        txn.execute("SET", scene.key("a"), "1")
        txn.execute("ZUNIONSTORE", scene.key("b"), 1, scene.key("c"))
        for name in ("a", "b"):
            with pytest.raises(GuardError, match="read first, then write"):
                txn.get(scene.key(name))
        assert txn.get(scene.key("d")) is None


def test_a_transaction_is_over_with_its_block(scene: Scene) -> None:
    with scene.block() as txn:
        pass
    with contextlib.suppress(ZeroDivisionError), scene.block() as another:
        raise ZeroDivisionError
    for one in (txn, another):
        for use in (one.get, lambda key, one=one: one.execute("DEL", key)):
            with pytest.raises(GuardError, match="the guarded block is over"):
                use(scene.key("a"))


@pytest.mark.parametrize("wrong", [None, True, ["a"], "\ud800"])
def test_words_are_text_bytes_or_numbers(scene: Scene, wrong: Any) -> None:
    with scene.block() as txn:
        for use in (lambda: txn.get(wrong), lambda: txn.execute("SET", scene.key("a"), wrong)):
            with pytest.raises(ConfigError, match="an argument of a command"):
                use()


@pytest.mark.parametrize("wrong", [None, 1, b"SET", "", "SET k v"])
def test_a_command_is_its_name(scene: Scene, wrong: Any) -> None:
    with scene.block() as txn, pytest.raises(ConfigError, match="as its name and its arguments"):
        txn.execute(wrong, scene.key("a"), "1")


def test_no_transaction_of_the_callers_own_can_be_checked(scene: Scene) -> None:
    for use in (scene.guard.seal, scene.guard.check):
        with pytest.raises(GuardError, match="no transaction that stays open"):
            use(scene.lease, connection=object())


# --- limits -----------------------------------------------------------------------------------------------------------
def test_more_than_a_script_takes_is_refused_before_it_is_sent(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "MAX_WRITES", 3)
    monkeypatch.setattr(block, "MAX_REQUEST_BYTES", 3000)
    with pytest.raises(GuardError, match="has 4 commands, and a script takes 3"):
        scene.write(*[("SET", scene.key("a"), "1")] * 4)
    with pytest.raises(GuardError, match=r"needs \d+ bytes, and a guard sends 3000"):
        scene.write(("SET", scene.key("a"), "x" * 3000))
    with pytest.raises(ConfigError, match="4000 words at most"):
        scene.write(("RPUSH", scene.key("a"), *["x"] * MAX_WORDS))
    assert scene.names() == []


def test_the_longest_command_is_run(scene: Scene) -> None:
    scene.write(("RPUSH", scene.key("a"), *["x"] * (MAX_WORDS - 2)))
    assert scene.direct("LLEN", scene.key("a")) == MAX_WORDS - 2


# --- what is found at the end -----------------------------------------------------------------------------------------
def late(scene: Scene, meantime: Callable[[], Any], read: Callable[[Any], Any] = lambda _: None) -> None:
    """Write in a block, while something else happens before its end."""
    with scene.block() as txn:
        read(txn)
        txn.execute("SET", scene.key("a"), "late")
        meanwhile(meantime)


def test_g3_a_block_that_was_overtaken_writes_nothing_and_says_by_whom(scene: Scene) -> None:
    later = fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK)
    for read in (lambda _: None, lambda txn: txn.get(scene.key("a"))):
        scene.lease = HandmadeLease(scene.guard.mark().token + 1)
        with pytest.raises(StaleTokenError) as caught:
            late(scene, lambda: later.seal(HandmadeLease(scene.lease.sequencer.token + 1)), read)
        assert caught.value.mark == caught.value.token + 1
        assert caught.value.resource == RESOURCE
        assert scene.names() == []


def test_g10_a_block_whose_own_holder_closes_writes_nothing(scene: Scene) -> None:
    with pytest.raises(StaleTokenError, match="its own holder closed it"):
        late(scene, lambda: scene.guard.close(scene.lease))
    assert scene.names() == []


@pytest.mark.parametrize("lose", [("DEL", "mark"), ("FLUSHDB",)], ids=["evicted", "flushed"])
def test_g9_a_lost_mark_admits_nobody(redis_fleet: Any, lose: tuple[str, ...]) -> None:
    """As eviction, FLUSHDB and a failover lose it: neither the holder, nor a stale one, nor the next."""
    with redis_fleet.new_server() as server:
        scene = Scene(own_corner(server))
        command = tuple(scene.mark_key() if word == "mark" else word for word in lose)
        with pytest.raises(SealLostError):
            late(scene, lambda: scene.direct(*command))
        assert scene.names() == []
        stale = fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK)
        for lease in (HandmadeLease(4), scene.lease, HandmadeLease(6)):
            with pytest.raises(GuardError, match="no mark"):
                stale.seal(lease)
        assert scene.guard.mark().token == 0


@pytest.mark.parametrize(("was", "becomes"), [("was", "changed"), ("was", "was"), ("was", None), (None, "new")])
def test_an_unfenced_write_to_what_was_read_refuses_the_block(
    scene: Scene, was: str | None, becomes: str | None
) -> None:
    key = scene.key("read")
    if was is not None:
        scene.direct("SET", key, was)
    change = (lambda: scene.direct("DEL", key)) if becomes is None else (lambda: scene.direct("SET", key, becomes))
    with pytest.raises(GuardError, match=r"a key that the block had read has changed") as caught:
        late(scene, change, read=lambda txn: txn.get(key))
    assert type(caught.value) is GuardError
    assert scene.value("a") is None


def test_a_write_to_what_the_block_did_not_read_refuses_nothing(scene: Scene) -> None:
    late(scene, lambda: scene.direct("SET", scene.key("b"), "unfenced"), read=lambda txn: txn.get(scene.key("read")))
    assert scene.value("a") == "late"


def test_of_two_blocks_of_one_lease_that_read_the_same_one_is_refused(scene: Scene) -> None:
    scene.direct("SET", scene.key("n"), "0")

    def count() -> None:
        with fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK).transaction(scene.lease) as txn:
            txn.execute("SET", scene.key("n"), int(txn.get(scene.key("n"))) + 1)

    with pytest.raises(GuardError, match="Another block of the same lease was faster"):
        late(scene, count, read=lambda txn: txn.get(scene.key("n")))
    assert (scene.value("n"), scene.value("a")) == ("1", None)


def test_a_read_of_the_wrong_kind_is_a_refusal(scene: Scene) -> None:
    scene.direct("RPUSH", scene.key("list"), "x")
    with scene.block() as txn, pytest.raises(GuardError, match="refused GET: WRONGTYPE"):
        txn.get(scene.key("list"))


# --- a script that fails midway ---------------------------------------------------------------------------------------
def test_a_first_command_that_fails_writes_nothing(scene: Scene) -> None:
    scene.direct("SET", scene.key("text"), "x")
    with pytest.raises(
        GuardError, match=r"refused RPUSH \(WRONGTYPE.*nothing of the guarded block was written"
    ) as caught:
        scene.write(("RPUSH", scene.key("text"), "1"), ("SET", scene.key("a"), "1"))
    assert caught.value.definite
    assert scene.names() == ["text"]


@pytest.mark.parametrize("reads", [False, True])
def test_a_later_command_that_fails_leaves_the_block_partly_applied(scene: Scene, reads: bool) -> None:
    scene.direct("SET", scene.key("text"), "x")
    said = r"partly applied: INCR failed \(.*not an integer.*\) as command 3 of 4, and Redis does not roll back the 2"

    def work() -> None:
        with scene.block() as txn:
            if reads:
                txn.get(scene.key("other"))
            for name in ("a", "b"):
                txn.execute("SET", scene.key(name), name)
            txn.execute("INCR", scene.key("text"))
            txn.execute("SET", scene.key("c"), "c")

    with pytest.raises(OutcomeUnknownError, match=said) as caught:
        work()
    assert not caught.value.definite
    assert scene.names() == ["a", "b", "text"]


def test_g14_a_partly_applied_job_stays_in_doubt(scene: Scene) -> None:
    scene.direct("SET", scene.key("text"), "x")

    def work() -> None:
        with scene.guard.transaction(scene.lease, once="night") as txn:
            txn.execute("SET", scene.key("a"), "1")
            txn.execute("INCR", scene.key("text"))

    with pytest.raises(OutcomeUnknownError, match="partly applied"):
        work()
    with pytest.raises(EffectInDoubtError, match="began 'night'"):
        work()


def test_a_server_without_room_refuses_the_whole_block(own_redis: RedisServer) -> None:
    scene = Scene(own_corner(own_redis))
    scene.guard.seal(scene.lease)
    scene.direct("CONFIG", "SET", "maxmemory", 1)

    def write(*, reads: bool) -> None:
        with scene.block() as txn:
            if reads:
                txn.get(scene.key("b"))
            txn.execute("DEL", scene.key("b"))
            txn.execute("SET", scene.key("a"), "1")

    for reads in (False, True):
        with pytest.raises(SourceUnavailableError, match="no room left") as caught:
            write(reads=reads)
        assert caught.value.definite
    assert scene.names() == []
    scene.direct("CONFIG", "SET", "maxmemory", 0)
    scene.write(("SET", scene.key("a"), "1"))


def test_a_block_whose_connection_ends_after_a_read_writes_nothing(own_redis: RedisServer) -> None:
    scene = Scene(own_corner(own_redis))
    with pytest.raises(BlockLostError):
        late(scene, lambda: scene.direct("CLIENT", "KILL", "TYPE", "normal"), read=lambda txn: txn.get(scene.key("b")))
    assert scene.names() == []
    scene.write(("SET", scene.key("a"), "1"))


# --- tasks ------------------------------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_task_awaits_reads_and_not_writes(scene: Scene) -> None:
    guard = fencelock.aio.guard(scene.url, resource=RESOURCE, lock=LOCK)
    scene.direct("SET", scene.key("a"), "1")
    async with guard.transaction(scene.lease) as txn:
        assert await txn.get(scene.key("a")) == b"1"
        assert await txn.read("STRLEN", scene.key("a")) == 1
        txn.execute("SET", scene.key("b"), "2")
    assert scene.value("b") == "2"
    meanwhile(lambda: fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK).seal(HandmadeLease(6)))
    with pytest.raises(StaleTokenError, match="its mark is 6"):
        await guard.transaction(scene.lease).__aenter__()


@pytest.mark.asyncio
async def test_g3_a_task_that_was_overtaken_writes_nothing(scene: Scene) -> None:
    guard = fencelock.aio.guard(scene.url, resource=RESOURCE, lock=LOCK)

    async def write() -> None:
        async with guard.transaction(scene.lease) as txn:
            await txn.get(scene.key("a"))
            txn.execute("SET", scene.key("a"), "late")
            await asyncio.to_thread(fencelock.guard(scene.url, resource=RESOURCE, lock=LOCK).seal, HandmadeLease(6))

    with pytest.raises(StaleTokenError, match="its mark is 6"):
        await write()
    assert scene.names() == []


@pytest.mark.asyncio
async def test_a_cancelled_read_leaves_no_answer_for_the_next(own_redis: RedisServer) -> None:
    scene = Scene(own_corner(own_redis))
    guard = fencelock.aio.guard(scene.url, resource=RESOURCE, lock=LOCK)
    scene.direct("SET", scene.key("a"), "1")
    async with guard.transaction(scene.lease) as txn:
        await txn.get(scene.key("b"))
    own_redis.freeze()
    try:
        with pytest.raises((TimeoutError, asyncio.CancelledError)):
            await asyncio.wait_for(guard.transaction(scene.lease).__aenter__(), 0.1)
    finally:
        own_redis.thaw()
    async with guard.transaction(scene.lease) as txn:
        assert await txn.get(scene.key("a")) == b"1"
