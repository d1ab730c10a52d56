"""The messages of etcd's v3 API that fencelock sends and receives, and short functions for the parts of a transaction.

Promise: each class here is an ordinary protobuf message, made from the table at import. Each function returns one
message and does nothing else. Comparisons are of one key, except `is_empty`, which is of a range.
Never: a general client's messages; what neither locks nor guards need is left out, and is skipped when a server sends
it.
"""

from collections.abc import Iterable
from typing import Any

from fencelock._grpc_wire import message_classes

_TABLE = {
    "ResponseHeader": "1 cluster_id uint64, 2 member_id uint64, 3 revision int64, 4 raft_term uint64",
    "KeyValue": "1 key bytes, 2 create_revision int64, 3 mod_revision int64, 4 version int64, 5 value bytes, "
    "6 lease int64",
    "Event": "1 type int32, 2 kv KeyValue, 3 prev_kv KeyValue",
    "RangeRequest": "1 key bytes, 2 range_end bytes, 3 limit int64, 4 revision int64, 5 sort_order int32, "
    "6 sort_target int32, 7 serializable bool, 8 keys_only bool, 9 count_only bool, 10 min_mod_revision int64, "
    "11 max_mod_revision int64, 12 min_create_revision int64, 13 max_create_revision int64",
    "RangeResponse": "1 header ResponseHeader, 2 kvs KeyValue*, 3 more bool, 4 count int64",
    "PutRequest": "1 key bytes, 2 value bytes, 3 lease int64, 4 prev_kv bool, 5 ignore_value bool, 6 ignore_lease bool",
    "PutResponse": "1 header ResponseHeader, 2 prev_kv KeyValue",
    "DeleteRangeRequest": "1 key bytes, 2 range_end bytes, 3 prev_kv bool",
    "DeleteRangeResponse": "1 header ResponseHeader, 2 deleted int64, 3 prev_kvs KeyValue*",
    "Compare": "1 result int32, 2 target int32, 3 key bytes, 4 version int64, 5 create_revision int64, "
    "6 mod_revision int64, 7 value bytes, 8 lease int64, 64 range_end bytes",
    "RequestOp": "1 request_range RangeRequest, 2 request_put PutRequest, 3 request_delete_range DeleteRangeRequest, "
    "4 request_txn TxnRequest",
    "ResponseOp": "1 response_range RangeResponse, 2 response_put PutResponse, "
    "3 response_delete_range DeleteRangeResponse, 4 response_txn TxnResponse",
    "TxnRequest": "1 compare Compare*, 2 success RequestOp*, 3 failure RequestOp*",
    "TxnResponse": "1 header ResponseHeader, 2 succeeded bool, 3 responses ResponseOp*",
    "LeaseGrantRequest": "1 ttl int64, 2 id int64",
    "LeaseGrantResponse": "1 header ResponseHeader, 2 id int64, 3 ttl int64, 4 error string",
    "LeaseRevokeRequest": "1 id int64",
    "LeaseRevokeResponse": "1 header ResponseHeader",
    "LeaseKeepAliveRequest": "1 id int64",
    "LeaseKeepAliveResponse": "1 header ResponseHeader, 2 id int64, 3 ttl int64",
    "LeaseTimeToLiveRequest": "1 id int64, 2 keys bool",
    "LeaseTimeToLiveResponse": "1 header ResponseHeader, 2 id int64, 3 ttl int64, 4 granted_ttl int64, 5 keys bytes*",
    "WatchRequest": "1 create_request WatchCreateRequest, 2 cancel_request WatchCancelRequest",
    "WatchCreateRequest": "1 key bytes, 2 range_end bytes, 3 start_revision int64, 4 progress_notify bool, "
    "5 filters int32*, 6 prev_kv bool, 7 watch_id int64",
    "WatchCancelRequest": "1 watch_id int64",
    "WatchResponse": "1 header ResponseHeader, 2 watch_id int64, 3 created bool, 4 canceled bool, "
    "5 compact_revision int64, 6 cancel_reason string, 11 events Event*",
    "AuthenticateRequest": "1 name string, 2 password string",
    "AuthenticateResponse": "1 header ResponseHeader, 2 token string",
    "StatusRequest": "",
    "StatusResponse": "1 header ResponseHeader, 2 version string, 3 db_size int64, 4 leader uint64",
}
"""The fields of each message: number, name, type, and a star if the field is repeated."""
_CLASSES = message_classes("fencelock.etcd", _TABLE)
AuthenticateRequest = _CLASSES["AuthenticateRequest"]
AuthenticateResponse = _CLASSES["AuthenticateResponse"]
Compare = _CLASSES["Compare"]
DeleteRangeRequest = _CLASSES["DeleteRangeRequest"]
LeaseGrantRequest = _CLASSES["LeaseGrantRequest"]
LeaseGrantResponse = _CLASSES["LeaseGrantResponse"]
LeaseKeepAliveRequest = _CLASSES["LeaseKeepAliveRequest"]
LeaseKeepAliveResponse = _CLASSES["LeaseKeepAliveResponse"]
LeaseRevokeRequest = _CLASSES["LeaseRevokeRequest"]
LeaseRevokeResponse = _CLASSES["LeaseRevokeResponse"]
LeaseTimeToLiveRequest = _CLASSES["LeaseTimeToLiveRequest"]
LeaseTimeToLiveResponse = _CLASSES["LeaseTimeToLiveResponse"]
PutRequest = _CLASSES["PutRequest"]
RangeRequest = _CLASSES["RangeRequest"]
RangeResponse = _CLASSES["RangeResponse"]
RequestOp = _CLASSES["RequestOp"]
StatusRequest = _CLASSES["StatusRequest"]
StatusResponse = _CLASSES["StatusResponse"]
TxnRequest = _CLASSES["TxnRequest"]
TxnResponse = _CLASSES["TxnResponse"]
WatchRequest = _CLASSES["WatchRequest"]
WatchResponse = _CLASSES["WatchResponse"]

# --- the parts of a transaction ---------------------------------------------------------------
_CREATE, _MOD, _VALUE = 1, 2, 3
_ASCEND, _DESCEND = 1, 2
_BY_CREATE = 2


def prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with `prefix`."""
    # The byte 0xff has no successor, so the byte before it is raised. Without any such byte the range has no end, which
    # etcd writes as a zero byte.
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def is_absent(key: bytes) -> Any:
    """Compare: the key does not exist."""
    return Compare(target=_CREATE, key=key)


def is_empty(prefix: bytes) -> Any:
    """Compare: no key begins with the prefix."""
    return Compare(target=_CREATE, key=prefix, range_end=prefix_end(prefix))


def was_created(key: bytes, revision: int) -> Any:
    """Compare: the key was created at this revision, and still exists."""
    return Compare(target=_CREATE, key=key, create_revision=revision)


def was_modified(key: bytes, revision: int) -> Any:
    """Compare: the key was last written at this revision; 0: it does not exist."""
    return Compare(target=_MOD, key=key, mod_revision=revision)


def has_value(key: bytes, value: bytes) -> Any:
    """Compare: the key exists, with this value."""
    return Compare(target=_VALUE, key=key, value=value)


def get(key: bytes) -> Any:
    """Read one key."""
    return RequestOp(request_range=RangeRequest(key=key))


def count(key: bytes) -> Any:
    """Count one key: 1 if it exists."""
    return RequestOp(request_range=RangeRequest(key=key, count_only=True))


def count_prefix(prefix: bytes) -> Any:
    """Count the keys that begin with the prefix, without reading them."""
    return RequestOp(
        request_range=RangeRequest(key=prefix, range_end=prefix_end(prefix), count_only=True),
    )


def get_prefix(
    prefix: bytes, *, limit: int = 0, is_oldest_first: bool = False, created_by: int = 0, is_keys_only: bool = False
) -> Any:
    """Read the keys that begin with the prefix, in the order of their names or of their creation.

    `created_by` leaves out keys that were created after this revision. With either option etcd reads the whole range.
    """
    return RequestOp(
        request_range=RangeRequest(
            key=prefix,
            range_end=prefix_end(prefix),
            limit=limit,
            sort_order=_ASCEND if is_oldest_first else 0,
            sort_target=_BY_CREATE if is_oldest_first else 0,
            max_create_revision=created_by,
            keys_only=is_keys_only,
        )
    )


def get_newest(prefix: bytes, *, created_by: int) -> Any:
    """Read the key with this prefix that was created last, but not after this revision."""
    return RequestOp(
        request_range=RangeRequest(
            key=prefix,
            range_end=prefix_end(prefix),
            limit=1,
            sort_order=_DESCEND,
            sort_target=_BY_CREATE,
            max_create_revision=created_by,
        )
    )


def put(key: bytes, value: bytes, lease: int = 0) -> Any:
    """Write one key; it ends with the lease if there is one."""
    return RequestOp(request_put=PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes, range_end: bytes = b"") -> Any:
    """Delete one key, or a range."""
    return RequestOp(request_delete_range=DeleteRangeRequest(key=key, range_end=range_end))


def nested(transaction: Any) -> Any:
    """Run a transaction as one step of another."""
    return RequestOp(request_txn=transaction)


def txn(compare: Iterable[Any], success: Iterable[Any], failure: Iterable[Any] = ()) -> Any:
    """Do `success` if all comparisons hold, else `failure`, in one step."""
    return TxnRequest(compare=compare, success=success, failure=failure)
