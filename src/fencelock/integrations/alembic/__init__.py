"""Alembic: `import fencelock.integrations.alembic` in env.py, and migrations protect tables and keep them protected.

Promise: with that one import, autogenerate sees none of fencelock's own tables, compares what tables ask for in their
`info` with what is protected, and renders `op.fencelock_protect(…)` and `op.fencelock_unprotect(…)`. Where DDL is
transactional, each operation is part of Alembic's own transaction. Batch mode on SQLite keeps a table protected.
Never: unprotects a table unless its `info` says so, or a migration drops it.
"""

from fencelock._install import install_extra
from fencelock.errors import MissingDependencyError

try:
    # Both register what they define with Alembic.
    from fencelock.integrations.alembic import autogenerate, batch
except ImportError as error:
    raise MissingDependencyError(
        f"fencelock.integrations.alembic needs Alembic 1.18 or later ({error.name}): {install_extra('alembic')}"
    ) from error

__all__ = ["autogenerate", "batch"]
