"""Options of several commands of `manage.py`. Promise: the same name and meaning in each."""

from django.core.management.base import CommandParser
from django.db import DEFAULT_DB_ALIAS, connections


def add_database(parser: CommandParser) -> None:
    """Add `--database ALIAS`."""
    parser.add_argument(
        "--database",
        choices=tuple(connections),
        default=DEFAULT_DB_ALIAS,
        help='The database.  [default: "default"]',
    )
