"""Real processes that share one MySQL source."""

import textwrap
from pathlib import Path

import psutil

from tests.process.actors import Actor, Stage
from tests.sql.mysql.fix_mysql import Database


class MySQLStage(Stage):
    """Actors that share one MySQL source."""

    def __init__(self, database: Database, folder: Path) -> None:
        super().__init__(folder / "unused.db")
        self.database = database
        self.url = database.url()

    def actor(self, script: str, *, options: tuple[str, ...] = ()) -> Actor:
        """Start an actor; `source` is the MySQL source."""
        named = f"URL = {self.url!r}\nsource = fencelock.connect(URL)\n"
        return super().actor(named + textwrap.dedent(script), options=options)

    def backends(self, actor: Actor) -> set[int]:
        """Return the numbers of an actor's connections, which the server knows by the ports that they come from."""
        sockets = psutil.Process(actor.pid).net_connections("tcp") if actor.pid in psutil.pids() else []
        ports = {str(each.laddr.port) for each in sockets}
        known = self.database.rows("select id, host from information_schema.processlist")
        return {number for number, host in known if host.rpartition(":")[2] in ports}
