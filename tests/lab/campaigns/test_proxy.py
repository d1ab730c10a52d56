"""The worker's own network: what goes through, what waits, and what is lost."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fencelock_lab.proxy import Proxy, addresses_of
from fencelock_lab.proxy.urls import through


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
            with connection:
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


def test_what_a_partition_held_back_arrives_when_it_heals(proxy: Proxy) -> None:
    with connected(proxy) as client:
        client.sendall(b"before")
        assert client.recv(4096) == b"before"
        proxy.partition(0.3)
        client.sendall(b"held")
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(4096)
        client.settimeout(20)
        assert client.recv(4096) == b"held"


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
    ],
)
def test_a_url_by_way_of_a_proxy_keeps_all_else(url: str, expected: str) -> None:
    assert through(url, [7000]) == expected.format(7000)


def test_each_server_of_a_cluster_has_its_proxy() -> None:
    url = "etcd://user:p%40@one,two:2390/app?locks=locks"
    assert through(url, [7000, 7001]) == "etcd://user:p%40@127.0.0.1:7000,127.0.0.1:7001/app?locks=locks"
