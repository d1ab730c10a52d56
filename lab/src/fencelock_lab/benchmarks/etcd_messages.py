"""The few messages of etcd's API that the hand-written lock needs, encoded and decoded by hand.

Promise: the bytes are protocol buffers as etcd's `rpc.proto` numbers their fields. Never: a message of fencelock's own.
"""

from collections.abc import Sequence

LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
TXN = "/etcdserverpb.KV/Txn"
_VARINT, _BYTES = 0, 2
_EQUAL = 0
_CREATE_REVISION, _VALUE = 1, 3
"""Targets of a comparison."""


def lease_grant(ttl_s: int) -> bytes:
    """Return a request for a lease."""
    return _number(1, ttl_s)


def lease_of(reply: bytes) -> int:
    """Return the lease's id in the reply to `lease_grant`."""
    return _find_number(reply, 2)


def txn(conditions: Sequence[bytes], operations: Sequence[bytes]) -> bytes:
    """Return a transaction that carries the operations out if all conditions hold."""
    return b"".join([*(_bytes(1, each) for each in conditions), *(_bytes(2, each) for each in operations)])


def is_done(reply: bytes) -> bool:
    """Return whether the conditions of a transaction held."""
    return bool(_find_number(reply, 2))


def revision_of(reply: bytes) -> int:
    """Return the revision in the header of a transaction's reply."""
    return _find_number(_find_bytes(reply, 1), 3)


def was_created(key: bytes, revision: int) -> bytes:
    """Return the condition that a key was created at a revision; 0: that it is absent."""
    return (
        _number(1, _EQUAL)
        + _number(2, _CREATE_REVISION)
        + _bytes(3, key)
        + _varint(5 << 3 | _VARINT)
        + _varint(revision)
    )


def has_value(key: bytes, value: bytes) -> bytes:
    """Return the condition that a key has a value."""
    return _number(1, _EQUAL) + _number(2, _VALUE) + _bytes(3, key) + _bytes(7, value)


def put(key: bytes, value: bytes, lease: int = 0) -> bytes:
    """Return the operation that puts a key, perhaps under a lease."""
    return _bytes(2, _bytes(1, key) + _bytes(2, value) + _number(3, lease))


def delete(key: bytes) -> bytes:
    """Return the operation that deletes a key."""
    return _bytes(3, _bytes(1, key))


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(number) if number else b""


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _find_number(message: bytes, wanted: int) -> int:
    return next((number for field, number, _ in _fields(message) if field == wanted), 0)


def _find_bytes(message: bytes, wanted: int) -> bytes:
    return next((content for field, _, content in _fields(message) if field == wanted), b"")


def _fields(message: bytes) -> list[tuple[int, int, bytes]]:
    """Return each field of a message: its number, and the number or the bytes that it has."""
    found, position = [], 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        number, position = _read_varint(message, position)
        content = b""
        if tag & 7 == _BYTES:
            content, position = message[position : position + number], position + number
        found.append((tag >> 3, number, content))
    return found


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[position]
        number |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if byte < 0x80:
            return number, position
