"""The worker's own network: what goes through, what waits, and what is lost."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fencelock_lab.proxy import Framing, Proxy, addresses_of
from fencelock_lab.proxy.urls import through

SHORT_S = 0.3
"""Longer than a change takes that waits for nothing."""


@pytest.fixture
def echo() -> Iterator[int]:
    """Serve the port of a server that answers each line with the same line, one connection after the other."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with suppress(ConnectionError), connection:  # A cut resets it.
                while data := connection.recv(4096):
                    connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as made:
        yield made


def connected(proxy: Proxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", proxy.port))
    client.settimeout(20)
    return client


def test_bytes_go_through_unchanged(proxy: Proxy) -> None:
    with connected(proxy) as client:
        sent = bytes(range(256)) * 1000
        threading.Thread(target=client.sendall, args=(sent,)).start()
        with client.makefile("rb") as reader:
            assert reader.read(len(sent)) == sent


def test_neither_side_waits_for_an_acknowledgement_to_send_more(proxy: Proxy) -> None:
    """Nagle's algorithm would hold the rest of a reply for 40 ms, until the client acknowledges what came."""
    with connected(proxy) as client:
        client.sendall(b"open")
        assert client.recv(4096) == b"open"
        [connection] = proxy._connections.values()
        for _, writer in (connection.client, connection.server):
            assert writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_a_partition_held_back_arrives_when_it_heals(proxy: Proxy) -> None:
    with connected(proxy) as client:
        client.sendall(b"before")
        assert client.recv(4096) == b"before"
        begun_s = time.monotonic()
        proxy.partition(SHORT_S)
        client.sendall(b"held")
        assert client.recv(4096) == b"held"
        assert time.monotonic() - begun_s >= SHORT_S


def test_a_delay_slows_and_loses_nothing(proxy: Proxy) -> None:
    proxy.delay(0.3)
    with connected(proxy) as client:
        client.sendall(b"slow")
        assert client.recv(4096) == b"slow"


def test_a_lost_reply_takes_its_connection_along_and_no_other(proxy: Proxy) -> None:
    with connected(proxy) as client:
        proxy.drop_next("replies")
        client.sendall(b"carried out, and not told")
        with suppress(ConnectionResetError):
            assert client.recv(4096) == b""
    with connected(proxy) as client:
        client.sendall(b"again")
        assert client.recv(4096) == b"again"


CHANGES: dict[str, Callable[[Proxy], None]] = {
    "drop": lambda proxy: proxy.drop_next("requests"),
    "lose": lambda proxy: proxy.lose("requests"),
    "freeze": lambda proxy: proxy.freeze(),
    "partition": lambda proxy: proxy.partition(60),
    "delay": lambda proxy: proxy.delay(60),
    "cut": lambda proxy: proxy.cut(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_once_a_change_has_returned_no_message_is_passed_on_that_it_should_have_hit(
    proxy: Proxy, change: Callable[[Proxy], None]
) -> None:
    """The proxy has just decided to pass a message on, and is in no hurry: the change waits for it."""
    is_deciding, may_pass = threading.Event(), threading.Event()

    def hold_nothing(_framing: Framing) -> bool:
        if is_connected.is_set() and not is_deciding.is_set():
            is_deciding.set()
            assert may_pass.wait(20)
        return False

    is_connected = threading.Event()
    proxy.freeze(hold_nothing)
    with connected(proxy) as client:
        client.sendall(b"before")
        assert client.recv(4096) == b"before"
        is_connected.set()
        client.sendall(b"decided")
        assert is_deciding.wait(20)
        changing = threading.Thread(target=change, args=(proxy,), daemon=True)
        changing.start()
        changing.join(SHORT_S)
        has_returned_early = not changing.is_alive()
        may_pass.set()
        changing.join(20)
    assert not has_returned_early


def test_a_server_that_is_not_there_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Proxy(port) as proxy, connected(proxy) as client:
        assert client.recv(4096) == b""


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("postgresql://u:p@db.example/app", [("db.example", 5432)]),
        ("mysql://u@db.example:3307/app", [("db.example", 3307)]),
        ("postgresql://[::1]:6543/app", [("::1", 6543)]),
        ("postgresql://one,two/app", []),
        ("postgresql:///app", []),
        ("etcd://user:secret@kv.example/app?locks=locks", [("kv.example", 2379)]),
        ("etcd://kv.example/app?ca=ca.pem", []),
        ("etcd://u:p,w@one,two:2390,[::1]:7/app", [("one", 2379), ("two", 2390), ("::1", 7)]),
        ("zookeeper://one,two/app", [("one", 2181), ("two", 2181)]),
        ("zookeeper://one,,two/app", []),
        ("zookeeper://zk.example/app?tick_ms=200", [("zk.example", 2181)]),
        ("zookeeper://zk.example/app?sasl=GSSAPI", []),
        ("http://127.0.0.1:8000/texts/", [("127.0.0.1", 8000)]),
        ("http://localhost/texts/", [("localhost", 80)]),
        ("https://service.example/texts/", []),
        ("dynamodb://eu-central-1/marks?endpoint=http://127.0.0.1:4566", [("127.0.0.1", 4566)]),
        ("s3://bucket/prefix?region=eu&endpoint=http%3A%2F%2Fstore.example", [("store.example", 80)]),
        ("s3://bucket/prefix?endpoint=https://store.example", []),
        ("s3://bucket/prefix", []),
        ("sqlite:////srv/app.db", []),
        (None, []),
    ],
)
def test_a_url_that_names_hosts_has_a_network(url: str | None, addresses: list[tuple[str, int]]) -> None:
    assert addresses_of(url) == addresses


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql://u:p%40@db:3307/app?ssl_mode=REQUIRED", "mysql://u:p%40@127.0.0.1:{}/app?ssl_mode=REQUIRED"),
        (
            "postgresql://u:p@db/app?sslmode=verify-full",
            "postgresql://u:p@db:{}/app?sslmode=verify-full&hostaddr=127.0.0.1",
        ),
        ("postgresql://[::1]/app", "postgresql://[::1]:{}/app?hostaddr=127.0.0.1"),
        ("etcd://user:p%40@kv/app?locks=locks", "etcd://user:p%40@127.0.0.1:{}/app?locks=locks"),
        ("zookeeper://zk:2182/app?tick_ms=200", "zookeeper://127.0.0.1:{}/app?tick_ms=200"),
        ("http://localhost:8000/texts/", "http://127.0.0.1:{}/texts/"),
        ("redis://u:p%40@kv/0/app?timeout=3", "redis://u:p%40@127.0.0.1:{}/0/app?timeout=3"),
        (
            "s3://bucket/a%20b?endpoint=http://store:9000&profile=a%26b",
            "s3://bucket/a%20b?endpoint=http://127.0.0.1:{}&profile=a%26b",
        ),
    ],
)
def test_a_url_by_way_of_a_proxy_keeps_all_else(url: str, expected: str) -> None:
    assert through(url, [7000]) == expected.format(7000)


def test_each_server_of_a_cluster_has_its_proxy() -> None:
    url = "etcd://user:p%40@one,two:2390/app?locks=locks"
    assert through(url, [7000, 7001]) == "etcd://user:p%40@127.0.0.1:7000,127.0.0.1:7001/app?locks=locks"
