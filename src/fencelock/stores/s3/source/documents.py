"""The documents of a source as objects: what each operation asks S3, and what its replies mean.

    <prefix>.fencelock/source                   the source's record
    <prefix>.fencelock/counters/<history id>    how many tokens its history has issued
    <prefix>.fencelock/locks/<name>             a lock

S3 compares ETags, and an ETag stands for the bytes of an object. Each body has a random version, the counter's too, so
no former bytes come back: a write or a delete that comes late meets another ETag, or no object.

Promise: pure. A number of the counter belongs to the one whose replacement was accepted. A name is escaped, and one
whose escaped form is long is written in Base64, in parts: other servers keep each part in a file name of 255 bytes.
Never: a write without a condition; a delete where the server does not keep its condition.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode

from fencelock.clock import boottime_ms
from fencelock.errors import SchemaError, SourceError, SourceUnavailableError, UnsupportedError
from fencelock.model import draw_claim
from fencelock.stores.aws.clients import Calls, Refusal
from fencelock.stores.aws.documents import AwsDocuments, date_ms, gathered, read_only
from fencelock.stores.aws.url import AwsConnectionInfo
from fencelock.stores.document import operations as ask
from fencelock.stores.document.operations import COUNTER, LOCK, SOURCE, Document, FoundDocuments, Key
from fencelock.stores.encoding import RESERVED, decode_object, escape_name, unescape_name
from fencelock.stores.pauses import growing_pauses
from fencelock.stores.s3.connection.calls import MISSING, delete_seen, write_object
from fencelock.stores.s3.probe import keeps_deletes, new_probe
from fencelock.stores.together import all_of

INCREMENT_MS = 8_000
"""For how long a token is drawn again because others have drawn one meanwhile."""
MAX_PART_CHARACTERS = 200
_LONG = "~"
"""What the path of a long name begins and ends with: `escape_name` never writes it."""
_REACHED = "reached"


class S3Documents(AwsDocuments):
    """The documents behind one prefix."""

    def __init__(self, info: AwsConnectionInfo) -> None:
        super().__init__(info.url)
        self._bucket = info.target
        self._folder = info.folder
        self._keeps_deletes = False
        root = f"{info.folder}{RESERVED}"
        self._names = {SOURCE: f"{root}/", COUNTER: f"{root}/counters/", LOCK: f"{root}/locks/"}

    def name_of(self, key: Key) -> str:
        """Return the name of a document's object."""
        return self._names[key.kind] + (lock_path(key.name) if key.kind == LOCK else key.name)

    # --- reading ------------------------------------------------------------------------------------------------------
    def read(self, operation: ask.ReadDocuments) -> Calls[FoundDocuments]:
        """Read objects, several at a time."""
        return (yield from self._read_all(operation.keys))

    def _read_all(self, keys: tuple[Key, ...]) -> Calls[FoundDocuments]:
        found = yield from all_of([self._read_one(key) for key in keys])
        documents = [document for document, _ in found]
        return gathered(documents, [date for document, date in found if document is None or not document.problem])

    def _read_one(self, key: Key) -> Calls[tuple[Document | None, int | None]]:
        try:
            reply = yield from read_only("get_object", {"Bucket": self._bucket, "Key": self.name_of(key)}, MISSING)
        except (SourceUnavailableError, SchemaError):
            raise
        except SourceError as error:
            # One object may be denied, or kept where it cannot be read at once: that says nothing of other locks.
            if key.kind != LOCK:
                raise
            return Document(key, "", "", f"lock {key.name!r} cannot be read: {error}"), None
        document = None if isinstance(reply, Refusal) else self._document(key, reply["ETag"], reply["Body"])
        return document, date_ms(reply)

    def _document(self, key: Key, etag: str, body: bytes) -> Document:
        if key.kind != COUNTER:
            return Document(key, etag, body.decode(errors="replace"))
        count = decode_object(body).get(_REACHED)
        if not isinstance(count, int):
            raise SourceError(
                f"{self.url}: the object {self.name_of(key)!r} is not a counter of fencelock's: find out who wrote "
                f"there, then run `fencelock epoch --raise --reason …`"
            )
        return Document(key, etag, str(count))

    def read_locks(self, operation: ask.ReadLocks) -> Calls[FoundDocuments]:
        """List the objects of locks, and read them."""
        start = self._names[LOCK]
        after = start + lock_path(operation.after) if operation.after else start
        documents: list[Document] = []
        dates: list[int | None] = []
        while True:
            page = {"Prefix": start, "StartAfter": after, "MaxKeys": operation.limit - len(documents)}
            reply = yield from read_only("list_objects_v2", {"Bucket": self._bucket, **page})
            assert isinstance(reply, dict)
            listed = [one["Key"] for one in reply.get("Contents", ())]
            names = filter(None, (lock_name(one[len(start) :]) for one in listed))
            found = yield from self._read_all(tuple(Key(LOCK, name) for name in names))
            documents += filter(None, found.documents)
            dates.append(found.date_ms)
            if not listed or not reply.get("IsTruncated") or len(documents) >= operation.limit:
                return gathered(documents, dates)
            after = listed[-1]

    def read_location(self, _: ask.ReadLocation) -> Calls[None]:
        """A bucket has no identity that a copy would not have."""
        yield from ()

    # --- writing ------------------------------------------------------------------------------------------------------
    def write(self, operation: ask.WriteDocument) -> Calls[bool]:
        """Put an object on its condition."""
        body, name = operation.body.encode(errors="replace"), self.name_of(operation.key)
        return (yield from write_object(self._bucket, name, body, operation.seen)) is not None

    def delete(self, operation: ask.Delete) -> Calls[bool]:
        """Delete an object on its condition; UnsupportedError if the server does not keep it."""
        if not self._keeps_deletes:
            if not (yield from keeps_deletes(self._bucket, new_probe(self._folder))):
                raise UnsupportedError(
                    f"{self.url} ignores the condition that an object must be the one that was read when it is deleted "
                    f"(If-Match), so a purge could delete a lock that was taken just now: nothing was deleted. What "
                    f"free locks leave there does no harm"
                )
            self._keeps_deletes = True
        return (yield from delete_seen(self._bucket, self.name_of(operation.key), operation.seen))

    def create_counter(self, operation: ask.CreateCounter) -> Calls[None]:
        """Put an object that has reached 0."""
        yield from write_object(self._bucket, self.name_of(operation.key), _counted(0))

    def increment(self, operation: ask.Increment) -> Calls[int | None]:
        """Replace the counter that was read by the next one."""
        give_up_ms = boottime_ms() + INCREMENT_MS
        for pause in growing_pauses():
            (counter,) = (yield from self._read_all((operation.key,))).documents
            if counter is None:
                return None
            count = int(counter.body) + 1
            name = self.name_of(operation.key)
            if (yield from write_object(self._bucket, name, _counted(count), counter.version)) is not None:
                return count
            if boottime_ms() > give_up_ms:
                break
            yield pause
        raise SourceUnavailableError(
            f"{self.url}: others have drawn a token each time before this process could: try again"
        )


def _counted(count: int) -> bytes:
    return json.dumps({"version": draw_claim(), _REACHED: count}).encode()


def lock_path(name: str) -> str:
    """Return the path that stands for a lock, below the others."""
    part = escape_name(name)
    if len(part) <= MAX_PART_CHARACTERS:
        return part
    text = urlsafe_b64encode(name.encode()).decode().rstrip("=")
    parts = (text[start : start + MAX_PART_CHARACTERS] for start in range(0, len(text), MAX_PART_CHARACTERS))
    # The last part ends so, and no other: so none is a folder and an object.
    return f"{_LONG}{'/'.join(parts)}{_LONG}"


def lock_name(path: str) -> str | None:
    """Return the name of the lock that a path stands for; None if it is not one of fencelock's."""
    if not path.startswith(_LONG):
        return unescape_name(path)
    text = path.strip(_LONG).replace("/", "")
    try:
        name = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return None
    return name if lock_path(name) == path else None
