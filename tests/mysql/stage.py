"""Real processes that share one MySQL source."""

import textwrap
from pathlib import Path

from tests.mysql.fix_mysql import Database
from tests.process.actors import Actor, Stage


class MySQLStage(Stage):
    """Actors that share one MySQL source."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(folder / "unused.db")
        self.database = database
        self.url = database.url()

    def actor(self, script: str, *, options: tuple[str, ...] = ()) -> Actor:
        """Start an actor; `source` is the MySQL source."""
        return super().actor(f"source = fenceline.connect({self.url!r})\n" + textwrap.dedent(script), options=options)
