"""`manage.py fencelock_protect`: makes the database refuse stale writes to the models that request it.

Promise: safe to repeat; a table that no migration has made yet is named, and keeps no other from its protection.
Never: removes protection.
"""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from fencelock.errors import FencelockError
from fencelock.integrations.django.management.options import add_database
from fencelock.integrations.django.protecting import Table, protect_tables, tables_of
from fencelock.protocol.guard_requests import ENFORCE, OBSERVE


class Command(BaseCommand):
    """Protects the tables of the models that are marked with @protected."""

    help = "Make the database refuse writes without a fencing token to protected models."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        add_database(parser)
        parser.add_argument(
            "--mode", choices=(ENFORCE, OBSERVE), default=ENFORCE, help="Refuse writes without a token, or count them."
        )
        parser.add_argument("--check", action="store_true", help="Change nothing; exit with 1 if any is missing.")

    def handle(self, *_: Any, database: str, mode: str, check: bool, **__: Any) -> None:
        """Protect the tables that request it, or report the missing ones."""
        try:
            tables = tables_of(database)
            missing = [table for table in tables if table.problem(mode)]
            if check:
                self._report(missing, mode)
            else:
                self._protect(database, mode, missing)
        except FencelockError as error:
            raise CommandError(str(error)) from error
        if not missing:
            said = "1 table is" if len(tables) == 1 else f"{len(tables)} tables are"
            self.stdout.write(f"{said} protected in database {database} ({mode})")

    def _report(self, missing: list[Table], mode: str) -> None:
        message = [f"table {table.name!r} {table.problem(mode)}" for table in missing]
        if message:
            raise CommandError("; ".join(message))

    def _protect(self, alias: str, mode: str, missing: list[Table]) -> None:
        """Protect those that exist, print them, and raise CommandError about the others."""
        for guard, tables in protect_tables(alias, mode, [table for table in missing if table.exists]):
            listed = ", ".join(table.name for table in tables)
            self.stdout.write(f"resource {guard.resources[0]} (lock {guard.lock}): {listed}: {mode}")
        self._report([table for table in missing if not table.exists], mode)
