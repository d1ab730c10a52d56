"""A connection to a real server that ends between the head and the body of a request: no object loses its bytes.

SeaweedFS 4.48 stores an empty object then, unless the head has a digest of the body.
"""

import asyncio
from asyncio import StreamReader
from pathlib import Path

import pytest

import fencelock
import fencelock.aio
from fencelock_lab.proxy import Frame, Framing, Proxy
from fencelock_lab.servers.server import HOST
from tests.s3.fix_s3 import Corner
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource
from tests.support.helpers import DEADLINE_S

MANIFEST, VALUE = b"/.fencelock/manifest", b"/value/"
_END = b"\r\n\r\n"


class CuttingFraming(Framing):
    """Sends the server the head of one PUT alone, and ends the client's connection once the server is done with it."""

    def __init__(self, proxy: "CuttingProxy") -> None:
        self._proxy = proxy

    async def request(self, reader: StreamReader) -> Frame:
        frame = await super().request(reader)
        if not self._proxy.is_due(frame.data.split(b"\r\n")[0]):
            return frame
        head = frame.data if _END in frame.data else frame.data + await reader.readuntil(_END)
        answers, writer = await asyncio.open_connection(HOST, self._proxy.server_port)
        writer.write(head.partition(_END)[0] + _END)
        writer.write_eof()
        await answers.read()
        writer.close()
        raise EOFError


class CuttingProxy(Proxy):
    """Cuts the first PUT of an object whose name has this part."""

    def __init__(self, port: int, part: bytes) -> None:
        super().__init__(port)
        self.server_port = port
        self.part = part
        self.has_cut = False

    def new_framing(self) -> Framing:
        return CuttingFraming(self)

    def is_due(self, line: bytes) -> bool:
        is_due = not self.has_cut and line.startswith(b"PUT ") and self.part in line
        self.has_cut |= is_due
        return is_due


def write(url: str, file: Path | None) -> None:
    with fencelock.guard(url, resource=RESOURCE, lock=LOCK).transaction(HandmadeLease(5)) as txn:
        if file is None:
            txn.put("value", "mine")
        else:
            txn.upload("value", file)


async def write_async(url: str, file: Path | None) -> None:
    async with fencelock.aio.guard(url, resource=RESOURCE, lock=LOCK).transaction(HandmadeLease(5)) as txn:
        if file is None:
            txn.put("value", "mine")
        else:
            txn.upload("value", file)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("is_file", [False, True], ids=["bytes", "file"])
@pytest.mark.parametrize("part", [MANIFEST, VALUE], ids=["manifest", "value"])
def test_a_request_without_its_body_writes_nothing(
    seaweed: Corner, tmp_path: Path, part: bytes, is_file: bool, is_async: bool
) -> None:
    fencelock.guard(seaweed.url, resource=RESOURCE, lock=LOCK).protect(source=HandmadeSource(0).info)
    (file := tmp_path / "file").write_text("mine")
    with CuttingProxy(int(seaweed.endpoint.rpartition(":")[2]), part) as proxy:
        url = proxy.url(seaweed.url)
        if is_async:
            asyncio.run(write_async(url, file if is_file else None))
        else:
            write(url, file if is_file else None)
    assert proxy.has_cut
    assert seaweed.value(RESOURCE, "value") == "mine"


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("part", [b"/.fencelock/counters/", b"/.fencelock/locks/"], ids=["counter", "lock"])
def test_a_request_of_a_source_without_its_body_writes_nothing(seaweed: Corner, part: bytes, is_async: bool) -> None:
    """An empty counter would grant no lock before an operator raises the epoch, and an empty lock none at all."""
    with fencelock.connect(seaweed.url) as source:
        source.install()
    with CuttingProxy(int(seaweed.endpoint.rpartition(":")[2]), part) as proxy:
        url = proxy.url(seaweed.url)
        token = asyncio.run(take_async(url)) if is_async else take(url)
    assert proxy.has_cut
    assert token


def take(url: str) -> int:
    with fencelock.connect(url) as source, source.lock("a", ttl=30.0, timeout=DEADLINE_S) as lease:
        return lease.token


async def take_async(url: str) -> int:
    async with fencelock.aio.connect(url) as source, source.lock("a", ttl=30.0, timeout=DEADLINE_S) as lease:
        return lease.token
