"""`manage.py fencelock_migrate`: Django's `migrate`, while this process holds a lock of the configured source.

Promise: one process migrates at a time; the others wait, and find nothing to do. The resources of the lock are sealed
first, so that no former holder writes to them any more. Once the lease is over, no further migration begins.
Never: a migration interrupted in the middle.
"""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands.migrate import Command as MigrateCommand

import fencelock
from fencelock.errors import FencelockError
from fencelock.integrations.django.protecting import guards_bound_to
from fencelock.integrations.django.settings import lock

DEFAULT_LOCK = "django-migrate"


class Command(MigrateCommand):
    """Migrates under a lock."""

    help = "Run migrate while this process holds a lock, so that no other process migrates."
    _lease: fencelock.Lease

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of `migrate`, and those of the lock."""
        super().add_arguments(parser)
        parser.add_argument("--lock", default=DEFAULT_LOCK, help="The lock's name.  [default: %(default)r]")
        parser.add_argument(
            "--wait", type=float, metavar="S", help="Wait so many seconds at most.  [default: no limit]"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate."""
        name, database = options.pop("lock"), options["database"]
        try:
            with lock(name, timeout=options.pop("wait")) as self._lease:
                for guard in guards_bound_to(database, name):
                    guard.seal(self._lease)
                super().handle(*args, **options)
        except FencelockError as error:
            raise CommandError(str(error)) from error

    def migration_progress_callback(self, action: str, migration: Any = None, fake: bool = False) -> None:
        """Report a step, and begin no further migration once the lease is over."""
        if action in {"apply_start", "unapply_start"}:
            self._lease.check_valid()
        super().migration_progress_callback(action, migration, fake)
