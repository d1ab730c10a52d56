"""A user's Alembic project in a folder: models, env.py, migrations, and Alembic's own command line over them."""

import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent, indent

import alembic
from alembic.config import Config, main

from tests.integrations.databases import GuardedDatabase
from tests.support.guards import LOCK, RESOURCE

TERMS = f'{{"resource": "{RESOURCE}", "lock": "{LOCK}"}}'
REACHED = threading.Event()
"""Set by the migration of a test."""
_TEMPLATE = Path(alembic.__file__).parent / "templates" / "generic" / "script.py.mako"
_MODELS = """
from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table

metadata = MetaData()
"""
_ENV = """
import asyncio
import runpy

from alembic import context
from sqlalchemy import create_engine, pool
from sqlalchemy.ext.asyncio import create_async_engine
{imports}

config = context.config
url = config.get_main_option("sqlalchemy.url")
options = {{
    "target_metadata": runpy.run_path(config.get_main_option("models"))["metadata"],
    {options}
}}
arguments = {{"connect_args": {{"timeout": 60}}}} if url.startswith("sqlite") else {{}}


def migrate(connection):
    context.configure(connection=connection, **options)
    with context.begin_transaction():
        context.run_migrations()


async def migrate_async():
    engine = create_async_engine(url, poolclass=pool.NullPool, **arguments)
    async with engine.connect() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


if context.is_offline_mode():
    context.configure(url=url, literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
elif {is_async}:
    asyncio.run(migrate_async())
else:
    with create_engine(url, poolclass=pool.NullPool, **arguments).connect() as connection:
        migrate(connection)
"""


class Project:
    """One project, whose migrations are in one line."""

    def __init__(
        self,
        folder: Path,
        guarded: GuardedDatabase,
        *,
        imports: str = "import fencelock.integrations.alembic",
        options: str = "",
        is_async: bool = False,
    ) -> None:
        self.folder = folder / "project"
        self.versions = self.folder / "versions"
        self.versions.mkdir(parents=True)
        (self.folder / "script.py.mako").write_text(_TEMPLATE.read_text())
        (self.folder / "env.py").write_text(_ENV.format(imports=imports, options=options, is_async=is_async))
        url = guarded.engines[is_async].replace("%", "%%")
        lines = [
            "[alembic]",
            f"script_location = {self.folder}",
            "path_separator = os",
            f"sqlalchemy.url = {url}",
            f"models = {self.folder / 'models.py'}",
        ]
        self.ini = self.folder / "alembic.ini"
        self.ini.write_text("\n".join(lines))
        self.models("")

    @property
    def config(self) -> Config:
        return Config(self.ini)

    def models(self, text: str) -> None:
        """Declare the tables."""
        (self.folder / "models.py").write_text(_MODELS + dedent(text))

    def run(self, *arguments: str) -> None:
        """Run Alembic's command line in this process."""
        main(argv=["-c", str(self.ini), *arguments], prog="alembic")

    def check_in_a_process(self) -> str:
        """Return what `alembic check` prints in a process that has imported nothing."""
        command = [sys.executable, "-m", "alembic", "-c", str(self.ini), "check"]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout

    def autogenerate(self) -> str:
        """Make the next migration from the models, and return the commands of its upgrade and its downgrade."""
        before = set(self.versions.glob("*.py"))
        self.run("revision", "--autogenerate", "--rev-id", self._next())
        (new,) = set(self.versions.glob("*.py")) - before
        return new.read_text().partition("def upgrade() -> None:")[2]

    def migration(self, upgrade: str, downgrade: str = "pass", imports: str = "") -> None:
        """Write the next migration by hand."""
        number = self._next()
        after = repr(str(int(number) - 1)) if int(number) > 1 else "None"
        parts = [
            "from alembic import context, op\nimport sqlalchemy as sa",
            imports,
            f"revision = {number!r}\ndown_revision = {after}",
            "def upgrade():\n" + indent(dedent(upgrade), "    "),
            "def downgrade():\n" + indent(dedent(downgrade), "    "),
        ]
        (self.versions / f"{number}_by_hand.py").write_text("\n".join(parts))

    def _next(self) -> str:
        return str(len(list(self.versions.glob("*.py"))) + 1)
