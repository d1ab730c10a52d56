"""Which servers a guard relies on, what the doctor finds, and what an error may show."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import NoPermissionError

import fencelock
import fencelock.aio
from fencelock import ConfigError, SourceError, SourceUnavailableError, UnsafeSourceError, UnsupportedError
from fencelock.stores.redis.connection.server import check_server, read_facts
from fencelock.stores.redis.connection.url import parse_url
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.redis import RedisFleet, RedisServer
from tests.redis.direct import Direct
from tests.redis.fix_redis import KINDS, own_corner
from tests.redis.guarded import Scene, protect
from tests.support.certificates import certify_client, certify_server, make_authority
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

UNFLUSHED = "?unflushed=accept"


def seal(url: str, token: int = 5) -> None:
    fencelock.guard(url, resource=RESOURCE, lock=LOCK).seal(HandmadeLease(token))


def wait_until_logged(server: RedisServer) -> None:
    """Wait until the log is whole that was begun by `appendonly yes`, or when a replica was filled."""
    wait_until(lambda: "aof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0" in server.ask("INFO", "persistence"))


def codes(url: str) -> list[str]:
    """Return what the doctor finds."""
    return [one.code for one in guard_store(url).examine()]


@pytest.mark.parametrize(
    ("setting", "value"), [("appendonly", "no"), ("appendfsync", "everysec"), ("no-appendfsync-on-rewrite", "yes")]
)
def test_g4_a_server_that_does_not_flush_is_refused_unless_the_url_accepts_it(
    own_redis: RedisServer, setting: str, value: str
) -> None:
    url = f"{own_redis.url}/0/app"
    protect(url)
    Direct.to(own_redis)("CONFIG", "SET", setting, value)
    with pytest.raises(UnsupportedError, match=rf"does not flush .*{setting} {value}.*write \?unflushed=accept"):
        seal(url)
    assert codes(url) == ["guard-refused"]
    seal(url + UNFLUSHED)
    assert "unflushed" in codes(url + UNFLUSHED)


@pytest.mark.parametrize(
    ("setting", "value", "usual"),
    [
        ("appendonly", "no", "yes"),
        ("appendfsync", "everysec", "always"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ],
)
def test_g4_a_server_whose_settings_change_later_takes_no_further_seal(
    own_redis: RedisServer, setting: str, value: str, usual: str
) -> None:
    url = f"{own_redis.url}/0/app"
    protect(url)
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    guard.seal(HandmadeLease(5))
    Direct.to(own_redis)("CONFIG", "SET", setting, value)
    with pytest.raises(UnsupportedError, match=f"{setting} {value}"):
        guard.seal(HandmadeLease(6))  # On the connection that was opened before.
    Direct.to(own_redis)("CONFIG", "SET", setting, usual)
    wait_until_logged(own_redis)
    assert guard.mark().token == 5
    guard.seal(HandmadeLease(6))


@pytest.mark.asyncio
async def test_g4_a_task_seals_at_no_server_whose_settings_have_changed(own_redis: RedisServer) -> None:
    url = f"{own_redis.url}/0/app"
    protect(url)
    guard = fencelock.aio.guard(url, resource=RESOURCE, lock=LOCK)
    await guard.seal(HandmadeLease(5))
    Direct.to(own_redis)("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(UnsupportedError, match="appendonly no"):
        await guard.seal(HandmadeLease(6))


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_may_evict_a_mark_is_refused(own_redis: RedisServer, policy: str) -> None:
    url = f"{own_redis.url}/0/app"
    protect(url)
    Direct.to(own_redis)("CONFIG", "SET", "maxmemory-policy", policy)
    if policy.startswith("volatile"):
        seal(url)
    else:
        with pytest.raises(UnsupportedError, match="may evict any key"):
            seal(url)


def test_a_replica_is_refused_and_passed_by(redis_fleet: RedisFleet, own_redis: RedisServer) -> None:
    Direct.to(own_redis)("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    with redis_fleet.new_server() as replica:
        Direct.to(replica)("REPLICAOF", own_redis.host, own_redis.port)
        wait_until(lambda: "master_link_status:up" in replica.ask("INFO", "replication"))
        with pytest.raises(UnsupportedError, match="is a replica"):
            seal(f"{replica.url}/0/app")
        both = f"redis://{replica.address},{own_redis.address}/0/app"
        protect(both)
        seal(both)
        assert Scene(own_corner(own_redis)).guard.mark().token == 5


def test_a_master_that_becomes_a_replica_takes_no_write(redis_fleet: RedisFleet, own_redis: RedisServer) -> None:
    scene = Scene(own_corner(own_redis))
    scene.write(("SET", scene.key("a"), "1"))

    def demote_inside() -> None:
        with scene.block() as txn:
            txn.execute("SET", scene.key("a"), "2")
            scene.direct("REPLICAOF", other.host, other.port)

    with redis_fleet.new_server() as other:
        with pytest.raises(SourceUnavailableError, match="is a replica now") as caught:
            demote_inside()
        assert caught.value.definite


def test_a_guard_goes_on_to_the_server_that_is_the_master_now(redis_fleet: RedisFleet, own_redis: RedisServer) -> None:
    """A server that is made a replica closes no connection: the seal examines it."""
    admin = Direct.to(own_redis)
    admin("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    with redis_fleet.new_server() as other:
        both = f"redis://{own_redis.address},{other.address}/0/app"
        protect(both)
        guard = fencelock.guard(both, resource=RESOURCE, lock=LOCK)
        guard.seal(HandmadeLease(5))
        Direct.to(other)("REPLICAOF", own_redis.host, own_redis.port)
        wait_until(lambda: "master_link_status:up" in other.ask("INFO", "replication"))
        wait_until(lambda: admin("WAIT", 1, 1000) == 1)
        wait_until_logged(other)
        Direct.to(other)("REPLICAOF", "NO", "ONE")
        admin("REPLICAOF", other.host, other.port)
        guard.seal(HandmadeLease(6))
        assert Scene(own_corner(other)).guard.mark().token == 6


@pytest.mark.parametrize("kind", KINDS)
def test_g4_a_server_whose_log_has_just_been_switched_on_takes_no_seal_yet(redis_fleet: RedisFleet, kind: str) -> None:
    """Until its first log is whole, what it has acknowledged is lost with a crash."""
    server = redis_fleet.new_server(kind)
    server.settings["appendonly"] = "no"
    with server:
        admin = Direct.to(server)
        protect(f"{server.url}/0/app{UNFLUSHED}")
        admin("CONFIG", "SET", "rdb-key-save-delay", 10_000_000)
        admin("CONFIG", "SET", "appendonly", "yes")
        with pytest.raises(SourceUnavailableError, match="writes its log for the first time"):
            seal(f"{server.url}/0/app")
        assert "unflushed" in codes(f"{server.url}/0/app{UNFLUSHED}")
        admin("CONFIG", "SET", "appendonly", "no")
        admin("CONFIG", "SET", "rdb-key-save-delay", 0)
        admin("CONFIG", "SET", "appendonly", "yes")
        wait_until_logged(server)
        seal(f"{server.url}/0/app")


@contextmanager
def long_script(server: RedisServer) -> Iterator[None]:
    """Have the server run somebody's script, and say so to everybody else."""
    Direct.to(server)("CONFIG", "SET", "busy-reply-threshold", 1)
    script = Direct.to(server)
    script._connection.send_command("EVAL", "while true do end", 0)
    wait_until(lambda: server.ask("PING").startswith("-BUSY"))
    with pytest.raises(SourceUnavailableError, match="runs somebody's long script") as caught:
        yield
    assert caught.value.definite
    assert server.ask("SCRIPT", "KILL") == "+OK"
    wait_until(server.is_ready)


def test_a_server_that_runs_a_long_script_is_unavailable_and_not_unsuitable(own_redis: RedisServer) -> None:
    """It answers INFO with BUSY too, as if the user had no right to it."""
    scene = Scene(own_corner(own_redis))
    scene.write(("SET", scene.key("a"), "1"))
    with long_script(own_redis):
        scene.guard.seal(HandmadeLease(6))
    with long_script(own_redis):
        seal(scene.url, 6)
    scene.guard.seal(HandmadeLease(6))
    with scene.block(HandmadeLease(6)) as txn:
        with long_script(own_redis):
            txn.get(scene.key("a"))
        assert txn.get(scene.key("a")) == b"1"


FACTS = {"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction", "cluster_enabled": "0"}
FLUSHING = {b"appendonly": b"yes", b"appendfsync": b"always", b"no-appendfsync-on-rewrite": b"no"}
OK = b"OK"


def check(url: str = "redis://h/0/app", settings: Any = FLUSHING, **changes: str) -> None:
    info = parse_url(url)
    report = "".join(f"{name}:{value}\r\n" for name, value in (FACTS | changes).items()).encode()
    check_server(info, "h:6379", read_facts(info, [report, settings, OK, OK]))


def test_what_a_server_must_be() -> None:
    check()
    check(redis_version="8.2.1")
    check(role="slave", cluster_enabled="1")
    denied = NoPermissionError("this user has no permissions to run the 'config|get' command")
    check(f"redis://h/0/app{UNFLUSHED}", denied)
    refused: list[tuple[Callable[[], None], str]] = [
        (lambda: check(redis_version="6.2.1"), "needs Redis 7.0, or Valkey"),
        (lambda: check(redis_version="x"), "needs Redis 7.0"),
        (lambda: check(role="slave"), "is a replica"),
        (lambda: check(maxmemory_policy="allkeys-random"), "may evict any key"),
        (lambda: check(settings=denied), r"does not tell this user whether it flushes.*\+config\|get"),
        (lambda: check(settings={}), "does not flush"),
        (lambda: read_facts(parse_url("redis://h/0/app"), [denied, denied, OK, OK]), r"run INFO.*\+info"),  # type: ignore[list-item, return-value]
        (lambda: read_facts(parse_url("redis://h/0/app"), [b"", {}, denied, OK]), r"run MULTI.*\+multi"),  # type: ignore[list-item, return-value]
    ]
    for call, why in refused:
        with pytest.raises(UnsupportedError, match=why):
            call()


# --- logins -----------------------------------------------------------------------------------------------------------
def test_a_login_that_is_missing_or_wrong_is_named_and_never_shown(own_redis: RedisServer) -> None:
    admin = Direct.to(own_redis)
    admin("ACL", "SETUSER", "clerk", "on", ">very-secret", "~*", "+@all")
    url = f"{own_redis.url}/0/app"
    protect(url)
    assert codes(url) == ["may-delete-all", "open-to-all"]
    admin("ACL", "SETUSER", "default", "resetpass", ">other-secret")
    with pytest.raises(SourceError, match="requires a login") as missing:
        seal(url)
    wrong = url.replace("redis://", "redis://clerk:not-secret@")
    with pytest.raises(SourceError, match="refuses the login") as refused:
        seal(wrong)
    right = url.replace("redis://", "redis://clerk:very-secret@")
    guard = fencelock.guard(right, resource=RESOURCE, lock=LOCK)
    guard.seal(HandmadeLease(5))
    assert codes(right) == ["may-delete-all"]
    shown = f"{missing.value} {refused.value} {guard!r} {guard.url} {guard_store(right)._pool.info!r}"  # type: ignore[attr-defined]
    assert "secret" not in shown
    assert "clerk" not in shown
    seal(url.replace("redis://", "redis://:other-secret@"))


def test_a_server_that_cannot_be_reached_is_named_with_the_reason(own_redis: RedisServer, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailableError, match="Connection refused"):
        protect("redis://127.0.0.1:1/0/app")
    with pytest.raises(ConfigError, match=r"/missing cannot be used for TLS \(No such file"):
        protect(f"rediss://{own_redis.address}/0/app?ca={tmp_path}/missing")


def test_a_database_that_the_server_lacks_is_named(own_redis: RedisServer) -> None:
    with pytest.raises(SourceError, match=r"has no database 99 \(.*\): correct the number in the URL"):
        protect(f"{own_redis.url}/99/app")


@pytest.mark.asyncio
async def test_a_connection_by_tls_trusts_the_named_authority_alone(
    own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in ((own_redis.folder, "ours"), (tmp_path, "others")):
        make_authority(folder, name)
    certify_server(own_redis.folder, "ours")
    certify_client(own_redis.folder, "ours")
    authority, files = own_redis.folder / "ours.crt", own_redis.folder
    own_redis.stop()
    own_redis.settings |= {
        "tls-port": own_redis.reserve_port("tls"),
        "tls-cert-file": str(files / "server.crt"),
        "tls-key-file": str(files / "server.key"),
        "tls-ca-cert-file": str(authority),
    }
    own_redis.start()
    base = f"rediss://localhost:{own_redis.ports['tls']}/0/app"
    mine = f"&cert={files / 'client.crt'}&key={files / 'client.key'}"
    url = f"{base}?ca={authority}{mine}"
    protect(url)
    seal(url)
    guard = fencelock.aio.guard(url, resource=RESOURCE, lock=LOCK)
    async with guard.transaction(HandmadeLease(6)) as txn:
        txn.execute("SET", "a", await txn.get("a") or "1")
    assert Direct.to(own_redis).get("a") == "1"
    other = f"{base}?ca={tmp_path / 'others.crt'}{mine}"
    for wrong in (base, other, f"{base}?ca={authority}"):
        with pytest.raises(SourceUnavailableError, match="cannot be reached"):
            seal(wrong, 7)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    seal(f"{base}?{mine[1:]}", 7)
    with pytest.raises(SourceUnavailableError, match="cannot be reached"):
        seal(other, 8)
    guard = fencelock.aio.guard(other, resource=RESOURCE, lock=LOCK)
    with pytest.raises(SourceUnavailableError, match="cannot be reached"):
        await guard.seal(HandmadeLease(8))


def test_redis_is_no_source_and_says_how_it_can_be_a_guard() -> None:
    with pytest.raises(UnsafeSourceError, match=r"failover loses acknowledged grants.*fencelock.guard\('redis://…'\)"):
        fencelock.connect("redis://host:6379/0/app")


# --- URLs -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h/0/app", "redis://h:6379/0/app"),
        ("REDIS://u:p%40@h:1,[::1]/15/a%2Fb/c/", "redis://h:1,[::1]:6379/15/a/b/c"),
        ("rediss://:p@h/0/app?ca=/ca.pem&cert=/c&key=/k", "rediss://h:6379/0/app"),
        ("redis://h/0/app?unflushed=accept", "redis://h:6379/0/app"),
    ],
)
def test_a_url_has_one_shown_form(url: str, shown: str) -> None:
    info = parse_url(url)
    assert info.url == shown
    assert repr(info) == f"RedisConnectionInfo({shown!r})"


@pytest.mark.parametrize(
    "url",
    [
        "redis://h", "redis://h/0", "redis://h/app", "redis://h/-1/app", "redis://h/99999999999/app", "redis://h/0/{a}",
        "redis:///0/app", "redis://h:0/0/app", "redis://h:x/0/app", "redis://secret@h/0/app", "redis://u:@h/0/app",
        "redis://h/0/app?unflushed=yes", "redis://h/0/app?ca=/f", "rediss://h/0/app?key=/f", "redis://h/0/app?secret=1",
        "redis://" + ",".join(["h"] * 65) + "/0/app",
    ],
)  # fmt: skip
def test_a_url_that_is_not_understood_is_refused_without_its_text(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert "secret@" not in str(caught.value)
