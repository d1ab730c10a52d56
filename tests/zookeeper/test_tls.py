"""TLS: the server's name is always checked, and only certificates of the URL's authority are accepted.

The server itself speaks plain text here; a TLS terminator stands before it, like a load balancer.
"""

import asyncio
import gc
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import fencelock
from fencelock import SourceUnavailableError
from fencelock.protocol.source_requests import ReadSource
from fencelock.stores.zookeeper.source.store import ZooKeeperSource
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.support.certificates import certify_server, make_authority
from tests.support.helpers import wait_until
from tests.zookeeper.fix_zookeeper import fresh_base

# kazoo leaves a socket with a failed handshake to the collector.
leaky = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


class Tls(NamedTuple):
    """A port that speaks TLS before the shared server, under the names 127.0.0.1 and localhost."""

    server: ZooKeeperServer
    port: int
    authority: Path
    other_authority: Path
    """A certificate that has signed nothing."""
    base: str

    def url(self, **params: str) -> str:
        """Return the address of a source over TLS."""
        return self.server.url(self.base, **params).replace(f":{self.server.port}/", f":{self.port}/")


class Terminator:
    """A TLS terminator, in a loop of its own."""

    def __init__(self, context: ssl.SSLContext, server_port: int) -> None:
        self._context = context
        self._server_port = server_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> int:
        """Listen, and return the port."""
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(10)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        await asyncio.gather(_pass(reader, to_server), _pass(from_server, writer))

    def stop(self) -> None:
        async def end() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
    finally:
        writer.close()


@pytest.fixture
def tls(zookeeper: ZooKeeperServer, tmp_path: Path) -> Iterator[Tls]:
    authority, other = make_authority(tmp_path, "authority"), make_authority(tmp_path, "other")
    certify_server(tmp_path, "authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    terminator = Terminator(context, zookeeper.port)
    yield Tls(zookeeper, terminator.start(), authority, other, fresh_base())
    terminator.stop()


def test_a_source_over_tls(tls: Tls) -> None:
    url = tls.url(ca=str(tls.authority))
    ZooKeeperSource(url).install()
    with fencelock.connect(url) as source, source.lock("a", ttl=20.0) as lease:
        assert source.info("a").token == lease.token


@leaky
def test_the_systems_authorities_are_trusted_unless_the_url_names_one(
    tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.authority))
    ZooKeeperSource(tls.url(tls="true")).install()
    _require_refused(tls.url(ca=str(tls.other_authority)))


@leaky
@pytest.mark.parametrize("authority", ["other", "none"])
def test_a_server_with_an_unknown_authority_is_refused(tls: Tls, authority: str) -> None:
    params = {"ca": str(tls.other_authority)} if authority == "other" else {"tls": "true"}
    _require_refused(tls.url(**params))


@leaky
def test_a_server_of_another_name_is_refused(tls: Tls) -> None:
    _require_refused(tls.url(ca=str(tls.authority)).replace("127.0.0.1", "127.1"))


def _require_refused(url: str) -> None:
    others = set(threading.enumerate())
    _fail_to_connect(url)
    wait_until(lambda: set(threading.enumerate()) <= others)
    gc.collect()  # Here, and not in another test, which would be blamed.


def _fail_to_connect(url: str) -> None:
    connection = ZooKeeperSource(url).connect(request_timeout_s=1.0)
    with pytest.raises(SourceUnavailableError, match="cannot be reached"):
        connection.perform(ReadSource())
    connection.close()
