"""Guarded transactions of Django: `with fenced(lease, resource="…"):`, beside `transaction.atomic`.

Promise: the block is one outermost transaction of the connection that `using` names. The resources are sealed before it
begins, the lease is checked and presented by its first statement, and it is committed at the end of the block, or
undone by an exception. Models ask for protection by `@protected`; `manage.py fencelock_protect` gives it, and
`manage.py check --database default` reports what has none. Errors of the guard come out as fencelock's own. Never: a
round trip beyond that check, a trace of the lease on a connection that is kept, a claim in Django's log of queries.
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
from fencelock.integrations.django.protecting import protected
from fencelock.integrations.django.settings import lock, source

__all__ = ["DjangoFenced", "fenced", "lock", "protected", "source"]
