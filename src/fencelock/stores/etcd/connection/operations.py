"""What a transaction of etcd is made of, in few words: comparisons, reads, writes.

Promise: pure; each function returns one message. Comparisons are of one key, but for `is_empty`, which is of a range.
"""

from collections.abc import Iterable
from typing import Any

from fencelock.stores.etcd.connection import messages as say

_CREATE, _MOD, _VALUE = 1, 2, 3
_ASCEND, _DESCEND = 1, 2
_BY_CREATE = 2


def prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with `prefix`."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def is_absent(key: bytes) -> Any:
    """Compare: there is no such key."""
    return say.Compare(target=_CREATE, key=key)


def is_empty(prefix: bytes) -> Any:
    """Compare: no key begins with the prefix."""
    return say.Compare(target=_CREATE, key=prefix, range_end=prefix_end(prefix))


def was_created(key: bytes, revision: int) -> Any:
    """Compare: the key was created at this revision, and is still there."""
    return say.Compare(target=_CREATE, key=key, create_revision=revision)


def was_modified(key: bytes, revision: int) -> Any:
    """Compare: the key was last written at this revision; 0: there is no such key."""
    return say.Compare(target=_MOD, key=key, mod_revision=revision)


def has_value(key: bytes, value: bytes) -> Any:
    """Compare: the key is there, with this value."""
    return say.Compare(target=_VALUE, key=key, value=value)


def get(key: bytes) -> Any:
    """Read one key."""
    return say.RequestOp(request_range=say.RangeRequest(key=key))


def count(key: bytes) -> Any:
    """Tell whether there is such a key, by a count."""
    return say.RequestOp(request_range=say.RangeRequest(key=key, count_only=True))


def count_prefix(prefix: bytes) -> Any:
    """Tell how many keys begin with the prefix, without reading them."""
    return say.RequestOp(
        request_range=say.RangeRequest(key=prefix, range_end=prefix_end(prefix), count_only=True),
    )


def get_prefix(prefix: bytes, *, limit: int = 0, is_oldest_first: bool = False, created_by: int = 0) -> Any:
    """Read the keys that begin with the prefix, in the order of their names or of their creation.

    `created_by`: none that was created after this revision. etcd reads the whole range unless neither is asked for.
    """
    return say.RequestOp(
        request_range=say.RangeRequest(
            key=prefix,
            range_end=prefix_end(prefix),
            limit=limit,
            sort_order=_ASCEND if is_oldest_first else 0,
            sort_target=_BY_CREATE if is_oldest_first else 0,
            max_create_revision=created_by,
        )
    )


def get_newest(prefix: bytes, *, created_by: int) -> Any:
    """Read of the keys that begin with the prefix the last that was created, not after this revision."""
    return say.RequestOp(
        request_range=say.RangeRequest(
            key=prefix,
            range_end=prefix_end(prefix),
            limit=1,
            sort_order=_DESCEND,
            sort_target=_BY_CREATE,
            max_create_revision=created_by,
        )
    )


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    """Write one key, which ends with the lease if there is one."""
    return say.RequestOp(request_put=say.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes, range_end: bytes = b"") -> Any:
    """Delete one key, or a range."""
    return say.RequestOp(request_delete_range=say.DeleteRangeRequest(key=key, range_end=range_end))


def within(transaction: Any) -> Any:
    """Do a transaction as one step of another."""
    return say.RequestOp(request_txn=transaction)


def txn(compare: Iterable[Any], success: Iterable[Any], failure: Iterable[Any] = ()) -> Any:
    """Do `success` if all comparisons hold, else `failure`, in one step."""
    return say.TxnRequest(compare=compare, success=success, failure=failure)
