"""Guarded transactions in Django: `with fenced(lease, resource="…"):`, beside `transaction.atomic`.

Promise: the block is one outermost transaction of the connection that `using` names. The resources are sealed before it
begins, its first statement checks and presents the lease, and the end of the block asks the server whether it is still
the same transaction, and commits it; an exception rolls it back. Models request protection with `@protected`;
`manage.py fencelock_protect` installs it, and `manage.py check --database default` reports the models without it. The
guard's errors are fencelock's own.
Never: a round trip besides these two, a trace of the lease on a connection that is reused, a proof in Django's query
log.
"""

from fencelock._install import install_extra
from fencelock.errors import MissingDependencyError

try:
    import django as _needed  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        f"fencelock.integrations.django needs Django 5.2 or later: {install_extra('django')}"
    ) from error

from fencelock.integrations.django.blocks import DjangoFenced, fenced
from fencelock.integrations.django.operations import ProtectTable, UnprotectTable
from fencelock.integrations.django.protecting import protected
from fencelock.integrations.django.settings import lock, source

__all__ = ["DjangoFenced", "ProtectTable", "UnprotectTable", "fenced", "lock", "protected", "source"]
