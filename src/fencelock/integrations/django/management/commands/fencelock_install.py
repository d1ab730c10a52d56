"""`manage.py fencelock_install`: creates what fencelock keeps, at the source of locks and in the databases with guards.

Promise: safe to repeat, also concurrently. On SQLite the first lock, and the first protected table, do the same.
"""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from fencelock.errors import FencelockError
from fencelock.integrations.django.protecting import has_requests
from fencelock.integrations.django.settings import read, source
from fencelock.integrations.django.urls import is_in_memory, url_of
from fencelock.stores.registry import guard_store, guard_url


class Command(BaseCommand):
    """Installs both halves: the source, and a guard for each database with protected models."""

    help = "Create fencelock's schema at the source of locks, and in each database with protected models."
    requires_system_checks = ()

    def handle(self, *_: Any, **__: Any) -> None:
        """Install."""
        try:
            if read().source is not None:
                source().install()
                self.stdout.write(f"{source().url} is ready for locks")
            for alias in connections:
                if has_requests(alias) and not is_in_memory(connections[alias]):
                    url = url_of(alias)
                    guard_store(url).install()
                    self.stdout.write(f"{guard_url(url)} is ready for guards")
        except FencelockError as error:
            raise CommandError(str(error)) from error
