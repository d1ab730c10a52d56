"""Which requests change nothing, and at which path a service is sealed: for the client and the service alike.

Promise: what a field is called, and what its text is, is in `_remote/fields.py`, since gRPC carries the same.
"""

SEAL_PATH = "/.well-known/fencing/seal"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "QUERY", "TRACE"})
"""Methods that change nothing."""
