"""A bucket in memory that keeps S3's conditions, or breaks them, and what can happen to a request on its way to it."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

from fencelock.clock import boottime_us
from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.aws.clients import Call, Refusal
from fencelock.stores.aws.documents import AsyncAwsDocumentClient, AwsDocumentClient
from fencelock.stores.s3.connection.client import _definite
from fencelock.stores.s3.guard.store import S3Guard
from fencelock.stores.s3.source.store import S3Source
from fencelock.stores.together import together, together_async

BEGAN_S = 1_800_000_000
"""The bucket's date when its clock shows 0."""
DELETES = "deletes"
"""As an ignored condition: that of a delete."""
LOST = OutcomeUnknownError("lost on purpose")


def etag_of(body: bytes) -> str:
    """Return what S3 shows of an object: a digest of its bytes, between quotation marks."""
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def is_manifest(call: Call) -> bool:
    """Return whether a call replaces a manifest."""
    return call.operation == "put_object" and call.arguments["Key"].endswith("/.fencelock/manifest")


def is_upload(call: Call) -> bool:
    """Return whether a call uploads the value of a key."""
    return call.operation == "put_object" and "/.fencelock/" not in call.arguments["Key"]


class FakeBucket:
    """Objects by their names. `run`, `sender` and their twins are those of S3Client."""

    ignored: frozenset[str] = frozenset()
    """Conditions that the server ignores, as rclone does."""
    knows_quotes = True
    """False: a condition with quotation marks is never met, as at radosgw."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[Call] = []
        self.mutex = threading.Lock()
        self.now_us = boottime_us
        self.settings: dict[str, Any] = {}
        """What each request about the bucket's settings is answered; the others are answered that there are none."""
        self.on_call: Callable[[Call, Callable[[], Any]], Any] = lambda _, answer: answer()
        """What happens to a call: it may answer it, before or after something else, twice, or not at all."""

    def run(self, calls: Any, timeout_s: float = 0) -> Any:
        return run_generator(calls, self.sender())

    async def run_async(self, calls: Any, timeout_s: float = 0) -> Any:
        return await run_generator_async(calls, self.sender_async())

    def sender(self) -> Callable[[Any], Any]:
        return together(self.send)

    def sender_async(self) -> Callable[[Any], Any]:
        return together_async(self.send_async)

    def send(self, call: Call) -> Any:
        try:
            return self._send(call)
        except OutcomeUnknownError as error:
            raise _definite(error, call) from error

    async def send_async(self, call: Call) -> Any:
        """The same for tasks; nothing happens to a call there but what a test does to `answer_async`."""
        self.calls.append(call)
        try:
            return await self.answer_async(call)
        except OutcomeUnknownError as error:
            raise _definite(error, call) from error

    async def answer_async(self, call: Call) -> Any:
        return self.answer(call)

    def answer(self, call: Call) -> Any:
        told = {"ResponseMetadata": {"HTTPHeaders": {"date": self.date()}}}
        with self.mutex:
            reply = getattr(self, f"_{call.operation}")(**call.arguments)
        if not isinstance(reply, Refusal):
            return reply | told
        assert reply.code in call.expects, f"{call.operation} does not expect {reply.code}"
        return reply._replace(reply=told)

    def date(self) -> str:
        """Return the bucket's date: whole seconds."""
        return formatdate(BEGAN_S + self.now_us() // 1_000_000, usegmt=True)

    def _get_object(self, Bucket: str, Key: str) -> Any:  # noqa: N803 - as botocore names them
        if (body := self.objects.get(Key)) is None:
            return Refusal("NoSuchKey", "", {})
        return {"Body": body, "ETag": etag_of(body)}

    _head_object = _get_object

    def _put_object(self, Bucket: str, Key: str, Body: bytes | Path, **conditions: str) -> Any:  # noqa: N803
        now = self.objects.get(Key)
        wanted = {name: value for name, value in conditions.items() if name not in self.ignored}
        if "IfNoneMatch" in wanted and now is not None:
            return Refusal("PreconditionFailed", "", {})
        if (etag := wanted.get("IfMatch")) is not None:
            there = None if now is None else etag_of(now)
            if there != (etag if self.knows_quotes else f'"{etag}"'):
                return Refusal("PreconditionFailed" if now is not None else "NoSuchKey", "", {})
        body = self.objects[Key] = Body.read_bytes() if isinstance(Body, Path) else Body
        return {"ETag": etag_of(body)}

    def _delete_object(self, Bucket: str, Key: str, IfMatch: str | None = None) -> Any:  # noqa: N803
        body = self.objects.get(Key)
        is_wrong = IfMatch is not None and (body is None or etag_of(body) != IfMatch)
        if is_wrong and DELETES not in self.ignored:
            return Refusal("PreconditionFailed", "", {})
        self.objects.pop(Key, None)
        return {}

    def _list_objects_v2(
        self,
        Bucket: str,  # noqa: N803
        Prefix: str,  # noqa: N803
        Delimiter: str = "",  # noqa: N803
        ContinuationToken: str = "",  # noqa: N803
        StartAfter: str = "",  # noqa: N803
        MaxKeys: int = 3,  # noqa: N803
    ) -> Any:
        names = sorted(name for name in self.objects if name.startswith(Prefix))
        if Delimiter:
            cut = {name[: name.index("/", len(Prefix)) + 1] for name in names if "/" in name[len(Prefix) :]}
            return {"CommonPrefixes": [{"Prefix": one} for one in sorted(cut)]}
        page = [name for name in names if name > max(ContinuationToken, StartAfter)][: min(MaxKeys, 3)]
        is_more = bool(page) and page[-1] != names[-1]
        more = {"NextContinuationToken": page[-1]} if is_more else {}
        return {"Contents": [{"Key": name} for name in page], "IsTruncated": is_more, **more}

    def _get_bucket_lifecycle_configuration(self, Bucket: str) -> Any:  # noqa: N803
        return self.settings.get("lifecycle", Refusal("NoSuchLifecycleConfiguration", "", {}))

    def _get_bucket_replication(self, Bucket: str) -> Any:  # noqa: N803
        return self.settings.get("replication", Refusal("ReplicationConfigurationNotFoundError", "", {}))

    def _get_bucket_versioning(self, Bucket: str) -> Any:  # noqa: N803
        return self.settings.get("versioning", {})

    # --- what may happen to a call ------------------------------------------------------------------------------------
    def on(self, matches: Callable[[Call], bool], *steps: Callable[[Callable[[], Any]], Any]) -> None:
        """Have the first calls that match answered by these steps, one each, and all others as usual."""
        left: Iterator[Any] = iter(steps)

        def answer(call: Call, normally: Callable[[], Any]) -> Any:
            step = next(left, None) if matches(call) else None
            return normally() if step is None else step(normally)

        self.on_call = answer

    # --- stores over this bucket --------------------------------------------------------------------------------------
    def source_store(self, url: str = "s3://bucket/prefix", **options: Any) -> S3Source:
        """Return a source over this bucket; two of them are two processes."""
        store: Any = S3Source(url, **options)

        async def send(call: Call) -> Any:
            return self._send(call)

        store.client = self
        store.open_client = lambda _: AwsDocumentClient(store._documents, FakeClient(self._send))
        store.open_async_client = lambda _: AsyncAwsDocumentClient(store._documents, FakeClient(send))
        return store

    def _send(self, call: Call) -> Any:
        self.calls.append(call)
        return self.on_call(call, lambda: self.answer(call))

    def guard_store(self, url: str = "s3://bucket/prefix") -> S3Guard:
        """Return a store over this bucket."""
        store = S3Guard(url)
        store.client = self
        return store


class FakeClient(NamedTuple):
    """A client of AWS: what sends calls."""

    call: Callable[[Call], Any]


def lose_reply(answer: Callable[[], Any]) -> Any:
    """The call is answered, and nobody hears it."""
    answer()
    raise LOST


def lose_request(_: Callable[[], Any]) -> Any:
    """The call does not arrive, and nobody knows."""
    raise LOST


def double(answer: Callable[[], Any]) -> Any:
    """The call arrives twice, and the second answer is told, as a client tells it that repeats by itself."""
    answer()
    return answer()


def is_down(_: Callable[[], Any]) -> Any:
    """Nobody answers, and nothing was sent."""
    raise SourceUnavailableError("down on purpose")
