"""The files that a guard of S3 uploads: whatever ends the call, none stays open."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from fencelock.stores.aws.clients import Call
from fencelock.stores.aws.url import parse_s3_url
from fencelock.stores.s3.connection import client as module
from fencelock.stores.s3.connection.client import S3Client
from tests.support.helpers import DEADLINE_S, wait_until_async


def test_a_cancelled_upload_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is somewhere between the start and the digest of the file, and goes on after the cancellation."""
    is_in_thread, may_go_on, opened = threading.Event(), threading.Event(), list[Any]()

    def stop_in_thread() -> None:
        if threading.current_thread() is not threading.main_thread():
            is_in_thread.set()
            assert may_go_on.wait(DEADLINE_S)

    class Watched(type(Path())):  # type: ignore[misc]
        def open(self, *arguments: Any, **options: Any) -> Any:
            stop_in_thread()
            opened.append(super().open(*arguments, **options))
            return opened[-1]

    path = Watched(tmp_path / "value")
    path.write_bytes(b"value")
    opened.clear()
    monkeypatch.setattr(module, "digest_of", lambda _: stop_in_thread())

    async def upload_and_cancel() -> None:
        calls = iter_once(Call("put_object", {"Bucket": "bucket", "Key": "key", "Body": path}))
        client = S3Client(parse_s3_url("s3://bucket?endpoint=http://127.0.0.1:1"))
        uploading = asyncio.create_task(client.run_async(calls))
        await wait_until_async(is_in_thread.is_set)
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        may_go_on.set()

    asyncio.run(upload_and_cancel())  # It ends when the thread has ended.
    assert [one.closed for one in opened] == [True]


def iter_once(call: Call) -> Any:
    """Return a run of one call."""
    return (yield call)
