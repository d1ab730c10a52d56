"""Faults as the bodies of HTTP answers, and back: problem details of RFC 9457.

Promise: `decode_problem` returns None for everything that no service of fencelock has written, so that a 5xx of a proxy
is never taken for one of ours.
"""

import json
from collections.abc import Mapping

from fencelock._remote.faults import RemoteFault, error_of
from fencelock.errors import FencelockError

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:fencelock:"
MAX_PROBLEM_BYTES = 65_536
"""A longer body is none of ours: a detail names one resource and two locks, of 512 bytes each."""


def encode_problem(fault: RemoteFault) -> bytes:
    """Return the body of a fault's answer."""
    head = {"type": f"{TYPE_PREFIX}{fault.kind}", "title": fault.title, "status": fault.status, "detail": fault.detail}
    return json.dumps(head | dict(fault.fields)).encode()


def decode_problem(content_type: str, body: bytes, token: int) -> FencelockError | None:
    """Return the error that an answer to a request with this token stands for; None if it is no problem of ours."""
    if content_type.partition(";")[0].strip().lower() != CONTENT_TYPE or len(body) > MAX_PROBLEM_BYTES:
        return None
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return _error_of(told, token) if isinstance(told, dict) else None


def _error_of(told: Mapping[str, object], token: int) -> FencelockError | None:
    kind, detail = told.get("type"), told.get("detail")
    if not (isinstance(kind, str) and kind.startswith(TYPE_PREFIX) and isinstance(detail, str)):
        return None
    return error_of(kind.removeprefix(TYPE_PREFIX), detail, told, token)
