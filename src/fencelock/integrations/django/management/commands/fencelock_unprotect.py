"""`manage.py fencelock_unprotect`: lets every program write the protected tables of a database again.

Promise: the marks stay, and the reason is kept in the database's audit. Safe to repeat.
"""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from fencelock.errors import FencelockError
from fencelock.integrations.django.management.options import add_database
from fencelock.integrations.django.protecting import unprotect_all
from fencelock.model import check_reason


class Command(BaseCommand):
    """Removes the protection of all tables of a database."""

    help = "Let every program write the tables that fencelock protects in a database."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        add_database(parser)
        parser.add_argument("--reason", required=True, help="Why; it is kept in the audit.")

    def handle(self, *_: Any, database: str, reason: str, **__: Any) -> None:
        """Remove the protection."""
        try:
            removed = unprotect_all(database, check_reason(reason))
        except FencelockError as error:
            raise CommandError(str(error)) from error
        for protection in removed:
            self.stdout.write(f"resource {protection.resource}: {protection.table}: every program can write it")
        if not removed:
            self.stdout.write(f"no table is protected in database {database}")
