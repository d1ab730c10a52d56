"""Guarded transactions in SQLAlchemy 2: `with fenced(session, lease, resource="…"):`, and `async with`.

Promise: the block is one transaction on the user's own session or connection. The resources are sealed before it
begins, its first statement checks and presents the lease, and the end of the block commits it; an exception rolls it
back. The guard's errors are fencelock's own, also where SQLAlchemy has wrapped them.
Never: a round trip besides that check, a trace of the lease on a pooled connection, a claim in SQLAlchemy's log.
"""

from fencelock._install import install_extra
from fencelock.errors import MissingDependencyError

try:
    import sqlalchemy as _needed  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        f"fencelock.integrations.sqlalchemy needs SQLAlchemy 2: {install_extra('sqlalchemy')}"
    ) from error

from fencelock.integrations.sqlalchemy.blocks import AsyncFenced, Fenced, fenced

__all__ = ["AsyncFenced", "Fenced", "fenced"]
