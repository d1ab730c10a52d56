"""Faults as the statuses of calls, and back: a code, a text, and details that hold one google.rpc.ErrorInfo.

Promise: any client that reads `google.rpc.Status` finds domain, reason and fields. Details that are none, or another
domain's, are None and never an error. The package googleapis-common-protos is not needed, and does not conflict.
"""

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from fencelock._grpc_wire import message_classes
from fencelock._remote.faults import RemoteFault, error_of
from fencelock.errors import FencelockError

DOMAIN = "fencelock"
STATUS_DETAILS = "grpc-status-details-bin"
MAX_DETAIL_BYTES = 1000
"""Of an error's text, percent-encoded: peers may refuse a call whose metadata together exceed 8 KiB."""
_CODES = {
    200: grpc.StatusCode.ALREADY_EXISTS,
    400: grpc.StatusCode.INVALID_ARGUMENT,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.UNKNOWN,
}
"""The codes of faults by their HTTP status. All others are FAILED_PRECONDITION, which no client repeats by itself."""
_TYPE = "type.googleapis.com/google.rpc.ErrorInfo"
_CLASSES = message_classes(
    "fencelock.rpc",
    {
        "Status": "1 code int32, 2 message string, 3 details Any*",
        "Any": "1 type_url string, 2 value bytes",
        "ErrorInfo": "1 reason string, 2 domain string, 3 metadata Entry*",
        # As a map<string, string> is encoded.
        "Entry": "1 key string, 2 value string",
    },
)
_Status, _Any, _ErrorInfo, _Entry = _CLASSES.values()


class ErrorInfo(NamedTuple):
    """What a service of fencelock's says of an error: its kind, as `STALE_TOKEN`, and its fields."""

    reason: str
    fields: dict[str, str]


def encode_status(fault: RemoteFault) -> tuple[grpc.StatusCode, str, tuple[str, bytes]]:
    """Return the code, the text and the trailing metadata of a fault."""
    code, text = _CODES.get(fault.status, grpc.StatusCode.FAILED_PRECONDITION), shorten(fault.detail)
    info = ErrorInfo(fault.kind.replace("-", "_").upper(), dict(fault.fields))
    return code, text, (STATUS_DETAILS, encode_details(code.value[0], text, info))


def decode_status(text: str, metadata: Iterable[tuple[str, str | bytes]], token: int) -> FencelockError | None:
    """Return the error that the text and trailing metadata of a call with this token stand for; None if the status is
    no fault of ours.
    """
    info = decode_details(metadata)
    return None if info is None else error_of(info.reason.lower().replace("_", "-"), text, info.fields, token)


def shorten(text: str) -> str:
    """Return the beginning of an error's text that has room in the metadata of a call."""
    if len(quote(text)) <= MAX_DETAIL_BYTES:
        return text
    kept = text[:MAX_DETAIL_BYTES]
    while len(quote(kept)) > MAX_DETAIL_BYTES - len(quote("…")):
        kept = kept[: len(kept) * 9 // 10]
    return f"{kept}…"


def encode_details(code: int, text: str, info: ErrorInfo) -> bytes:
    """Return the value of `grpc-status-details-bin` for a status with this code and text."""
    entries = [_Entry(key=key, value=value) for key, value in info.fields.items()]
    value = _ErrorInfo(reason=info.reason, domain=DOMAIN, metadata=entries).SerializeToString()
    return bytes(_Status(code=code, message=text, details=[_Any(type_url=_TYPE, value=value)]).SerializeToString())


def decode_details(metadata: Iterable[tuple[str, str | bytes]]) -> ErrorInfo | None:
    """Return what the trailing metadata of a call say in the name of fencelock; None if nothing."""
    for key, value in metadata:
        if key == STATUS_DETAILS and isinstance(value, bytes):
            try:
                return _find_info(value)
            except DecodeError:
                return None
    return None


def _find_info(encoded: bytes) -> ErrorInfo | None:
    for detail in _Status.FromString(encoded).details:
        if detail.type_url == _TYPE:
            info = _ErrorInfo.FromString(detail.value)
            if info.domain == DOMAIN:
                return ErrorInfo(info.reason, {entry.key: entry.value for entry in info.metadata})
    return None
