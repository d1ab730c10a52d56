"""A sequencer in the headers of a message: for any broker whose messages have headers, attributes or properties.

Promise: what `to_headers` returns, `from_headers` reads again, also if the broker has changed the case of the name or
turned text into bytes. A header that is missing, doubled or malformed is an error that says which. Each message is a
tenure's use of its own: nothing that the consumer's process remembers lets one in or keeps one out. Never: a header's
value in an error, because it contains the proof; a decision whether the sequencer is stale, which a guard alone makes.
"""

from collections.abc import Iterable, Iterator, Mapping

from fencelock._api.credentials import LeaseLike, credential_of
from fencelock._remote.carried import CarriedSequencer
from fencelock.errors import ConfigError, UnfencedWriteError
from fencelock.model import Sequencer

__all__ = ["HEADER", "from_headers", "to_headers"]

HEADER = "Fencing-Token"
"""The name of the header, as in HTTP. Reading ignores its case."""

Headers = Mapping[str, object] | Iterable[tuple[str, object]]
"""What clients of brokers hand out: a mapping, or pairs where a name may occur twice."""


def to_headers(lease: LeaseLike) -> dict[str, str]:
    """Return the headers that show the lease to the message's consumer: one name, one text of ASCII.

    LeaseError if the lease is over in this process. A sequencer is taken as it is. Whoever reads the message may write
    in the lease's name until a newer holder seals the resource.
    """
    credential = credential_of(lease)
    credential.check_valid()
    return {HEADER: str(credential.sequencer)}


def from_headers(headers: Headers | None) -> CarriedSequencer:
    """Return the sequencer in a message's headers; guards take it as a lease, but for `close`.

    Only its form is checked. UnfencedWriteError if there is none; ConfigError if there are two, or if it is malformed.
    Such a message is refused again however often it is delivered.
    """
    values = list(_values(headers))
    if not values:
        raise UnfencedWriteError(f"the message has no header {HEADER}: its producer must add to_headers(lease)")
    if len(values) > 1:
        raise ConfigError(f"the message has {len(values)} headers {HEADER}, and may have one")
    try:
        return CarriedSequencer(Sequencer.parse(_text(values[0])))
    except ConfigError as error:
        raise ConfigError(f"the message's header {HEADER} is {error}") from None


def _values(headers: Headers | None) -> Iterator[object]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    for name, value in pairs:
        if _text(name).lower() == HEADER.lower():
            # Some clients give a list, because a name may occur twice.
            yield from value if isinstance(value, list | tuple) else (value,)


def _text(value: object) -> str:
    """Return a name or a value as text; AMQP and Kafka carry bytes."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
