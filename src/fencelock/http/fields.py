"""The names of the fields of a request and its answer, and the path of the seal route.

Promise: what a field's text is, is in `_remote/fields.py`, since gRPC carries the same.
"""

from fencelock._remote.fields import (
    KEY_FIELD,
    MARK_FIELD,
    MAX_KEY_CHARACTERS,
    REPLAYED,
    REPLAYED_FIELD,
    SEALED_FIELD,
    TOKEN_FIELD,
)

SEAL_PATH = "/.well-known/fencing/seal"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "QUERY", "TRACE"})
"""Methods that change nothing, for the client and the service alike."""

__all__ = [
    "KEY_FIELD",
    "MARK_FIELD",
    "MAX_KEY_CHARACTERS",
    "REPLAYED",
    "REPLAYED_FIELD",
    "SAFE_METHODS",
    "SEALED_FIELD",
    "SEAL_PATH",
    "TOKEN_FIELD",
]
