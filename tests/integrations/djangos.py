"""The Django project of `project/`, in this process (with the database of each test) and in processes of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent / "project"
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project_settings")
sys.path.insert(0, str(PROJECT))

import django  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402

django.setup()
del os.environ["DJANGO_SETTINGS_MODULE"]  # Read by now, and no business of the programs that other tests start.

from books.models import Report  # noqa: E402

from tests.integrations.databases import GuardedDatabase  # noqa: E402


@contextmanager
def project_on(guarded: GuardedDatabase) -> Iterator[None]:
    """Create the project's tables, with one report, in a database."""
    with connected_to(guarded):
        call_command("migrate", run_syncdb=True, verbosity=0, skip_checks=True)
        Report.objects.create(pk=1, value="first")
        yield


@contextmanager
def connected_to(guarded: GuardedDatabase) -> Iterator[None]:
    """Let Django use a database as it is."""
    settings = connections.configure_settings({"default": guarded.settings})
    connections.databases["default"] = settings["default"]
    forget()
    try:
        yield
    finally:
        forget()


def forget() -> None:
    """Close this thread's connection, and have the next one made from the settings."""
    if hasattr(connections._connections, "default"):
        connections["default"].close()
        del connections["default"]


def manage(guarded: GuardedDatabase, *words: str, source: str | None = None, **more: Any) -> subprocess.Popen[str]:
    """Start `manage.py` in a process of its own."""
    environment = os.environ | {"BOOKS_DATABASE": json.dumps(guarded.settings)}
    environment |= {} if source is None else {"BOOKS_SOURCE": source}
    command = [sys.executable, "-W", "error", "manage.py", *words]
    return subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


def managed(guarded: GuardedDatabase, *words: str, source: str | None = None) -> tuple[int, str]:
    """Run `manage.py` to its end; return its exit code, and what it printed."""
    process = manage(guarded, *words, source=source)
    try:
        said, complained = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, said + complained
