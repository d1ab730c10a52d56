"""Guarded transactions in SQLAlchemy 2: `with fenced(session, lease, resource="…"):`, and `async with`.

Promise: the block is one transaction on the user's own session or connection. The resources are sealed before it
begins, its first statement checks and presents the lease, and the end of the block asks the server whether it is still
the same transaction, and commits it; an exception rolls it back. The guard's errors are fencelock's own, also where
SQLAlchemy has wrapped them.
Never: a round trip besides these two, a trace of the lease on a pooled connection, a proof in SQLAlchemy's log.
"""

import warnings

from fencelock._install import install_extra
from fencelock.errors import MissingDependencyError

try:
    from sqlalchemy.exc import SAWarning
except ImportError as error:
    raise MissingDependencyError(
        f"fencelock.integrations.sqlalchemy needs SQLAlchemy 2: {install_extra('sqlalchemy')}"
    ) from error

from fencelock.integrations.sqlalchemy.blocks import AsyncFenced, Fenced, fenced

# SQLAlchemy cannot reflect the index with which a SQLite file refuses incremental BLOB writes, and says so each time.
warnings.filterwarnings("ignore", "Skipped unsupported reflection of expression-based index fencelock_", SAWarning)

__all__ = ["AsyncFenced", "Fenced", "fenced"]
