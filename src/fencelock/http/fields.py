"""The names of the fields of a request and its answer, and the path of the seal route.

Promise: what a field's text is, is in `_remote/fields.py`, since gRPC carries the same.
"""

from fencelock._remote.fields import MARK_FIELD, SEALED_FIELD, TOKEN_FIELD

KEY_FIELD = "idempotency-key"
REPLAYED_FIELD = "fencing-replayed"
REPLAYED = "?1"
"""The value of Fencing-Replayed: true."""
SEAL_PATH = "/.well-known/fencing/seal"
MAX_KEY_CHARACTERS = 255

__all__ = [
    "KEY_FIELD",
    "MARK_FIELD",
    "MAX_KEY_CHARACTERS",
    "REPLAYED",
    "REPLAYED_FIELD",
    "SEALED_FIELD",
    "SEAL_PATH",
    "TOKEN_FIELD",
]
