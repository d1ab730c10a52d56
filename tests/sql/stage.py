"""Real processes that share one source on an SQL server."""

import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import psutil

from tests.process.actors import Actor, Stage
from tests.sql.dialect import SqlDialect
from tests.support.helpers import wait_until


class SqlStage(Stage):
    """Actors that share one source, each with connections by which the server can tell it from the others."""

    def __init__(self, sql: SqlDialect, database: Any, folder: Path) -> None:
        super().__init__(folder / "unused.db")
        self.sql = sql
        self.database = database
        self.url = database.url()

    def actor(self, script: str, *, options: tuple[str, ...] = ()) -> Actor:
        """Start an actor; `source` is the source on the server."""
        named = f"URL = {self.url!r}\nsource = fencelock.connect(URL)\n"
        return super().actor(named + textwrap.dedent(script), options=options)

    def backends(self, actor: Actor) -> set[int]:
        """Return the numbers of an actor's connections, which the server knows by the ports that they come from."""
        sockets = psutil.Process(actor.pid).net_connections("tcp") if actor.pid in psutil.pids() else []
        ports = {each.laddr.port for each in sockets}
        return {number for number, port in self.sql.session_ports(self.database).items() if port in ports}


def freeze(actor: Actor) -> None:
    """Stop an actor anywhere: it holds nothing of the server's for longer than a statement."""
    actor.send(signal.SIGSTOP)
    wait_until(lambda: os.waitid(os.P_PID, actor.pid, os.WSTOPPED | os.WNOHANG))
