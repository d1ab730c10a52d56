"""What a store must do to be a source of tokens: the operations on small documents, as plain values.

A document has a key, a body (JSON text) and a version. A version is drawn at random for every write, so it never comes
back: a write on the condition of a version that was read is refused if anything was written since, however late it
arrives. A counter is a number that the store itself increments.

Promise of a store: an operation is one step, its effect is durable before the reply, and a read sees every write that
was acknowledged before it began. A write whose condition does not hold changes nothing and is answered False: this is
no error. Errors are SourceErrors whose `definite` is correct: SourceUnavailableError (nothing was done),
OutcomeUnknownError (a write may have been done, or may still be), SchemaError (not installed).
Never: a request repeated by a client library after its first copy may have arrived; a write without a condition.
"""

from collections.abc import Generator
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from fencelock.errors import FencelockError
from fencelock.stores.pauses import Pause

SOURCE: Final = "source"
COUNTER: Final = "counter"
LOCK: Final = "lock"
MAX_KEYS = 100
"""Documents that one `ReadDocuments` asks for at most."""
MAX_WRITES = 24
"""Writes in one `WriteEach` at most: three rounds of eight."""
MAX_BODY_BYTES = 350_000


class Key(NamedTuple):
    """The key of a document or counter. `name` is a history id for counters, a lock's name for locks, else "source"."""

    kind: Literal["source", "counter", "lock"]
    name: str


SOURCE_KEY = Key(SOURCE, SOURCE)


class Document(NamedTuple):
    """A document as it was read. `version` is what `seen` of a write is compared with: the version that was written
    with the body, or a name of the store's own for exactly this content, such as an ETag. `problem`: why the store can
    read no document there, though there is something: that says nothing of other documents.
    """

    key: Key
    version: str
    body: str
    problem: str = ""


# --- operations -------------------------------------------------------------------------------------------------------
class ReadDocuments(NamedTuple):
    """Read these documents, each with all acknowledged writes; not as of one moment. Reply: FoundDocuments, in the same
    order.

    A counter is read as a document whose body is its decimal number; its version is not used.
    """

    keys: tuple[Key, ...]


class ReadLocks(NamedTuple):
    """Read the first `limit` locks that come after `after` ("": all), in the order of the store's own keys, which is
    that of the names where it can be. Reply: FoundDocuments. Fewer than `limit` mean that there are no more.
    """

    after: str
    limit: int


class WriteDocument(NamedTuple):
    """Write a document if its version is `seen` (None: if there is no such document). Reply: bool, whether it was.

    `version` is drawn for this write, and is part of the body too.
    """

    key: Key
    body: str
    version: str
    seen: str | None


class WriteEach(NamedTuple):
    """Do each of these writes by itself. Reply: tuple[bool | FencelockError, ...], in the same order: an error where
    the store has refused that write, or could not do it now, or the outcome is unknown. A store that is in doubt, or
    not available, may stop there, and give its error for the rest; one that has refused a write goes on. An error that
    is raised says that of all of them.
    """

    writes: tuple[WriteDocument, ...]


class Delete(NamedTuple):
    """Delete a document if its version is `seen`. Reply: bool, whether it was."""

    key: Key
    seen: str


class CreateCounter(NamedTuple):
    """Create a counter at 0, unless there is one with this key. Reply: None."""

    key: Key


class Increment(NamedTuple):
    """Add one to a counter. Reply: int, the number after it; None if there is no such counter.

    May be repeated: it then skips a number. Two increments never get the same number.
    """

    key: Key


class ReadLocation(NamedTuple):
    """Read the identity that the store itself gives to the location of the documents (a table, a bucket), which no
    copy has. Reply: str | None; None if the store has none.
    """


Operation = ReadDocuments | ReadLocks | WriteDocument | WriteEach | Delete | CreateCounter | Increment | ReadLocation


# --- replies ----------------------------------------------------------------------------------------------------------
class FoundDocuments(NamedTuple):
    """The documents, None for those that do not exist. `date_ms`: the store's own time at which it answered, rounded
    down to its resolution (the `Date` header), in milliseconds since 1970; None if it told none. Of several replies, as
    for documents that were read one by one, the earliest.
    """

    documents: tuple[Document | None, ...]
    date_ms: int | None = None


Reply = FoundDocuments | bool | tuple[bool | FencelockError, ...] | int | str | None
Result = TypeVar("Result")
Operations = Generator[Operation | Pause, Any, Result]
"""Yields operations and pauses, is sent their replies, and returns a Result."""


# --- clients ----------------------------------------------------------------------------------------------------------
class DocumentClient(Protocol):
    """Performs operations for one thread at a time.

    Each request that it sends waits at most the timeout that the client was made with; one operation may send several.
    """

    def perform(self, operation: Operation) -> Reply:
        """Perform one operation, or raise a SourceError."""

    def close(self) -> None:
        """Give back what the client uses; never raises."""


class AsyncDocumentClient(Protocol):
    """Performs operations for one task of one loop at a time."""

    async def perform(self, operation: Operation) -> Reply:
        """Perform one operation, or raise a SourceError."""

    def close(self) -> None:
        """Give back what the client uses without waiting; never raises."""
