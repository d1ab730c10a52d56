"""What SQLAlchemy, and with it Alembic, sees of a protected table in a SQLite file: the user's own columns and indexes.

Alembic compares a model with what SQLAlchemy's inspector returns, and looks at nothing else.
"""

import subprocess
import sys
from pathlib import Path

import fencelock
from tests.support.guards import LOCK, RESOURCE, plain, url_of

REFLECT = """
import sys
{imports}
from sqlalchemy import MetaData, create_engine, inspect

engine = create_engine(sys.argv[1])
inspector = inspect(engine)
metadata = MetaData()
metadata.reflect(engine, only=["reports"])
table = metadata.tables["reports"]
print([column.name for column in table.columns], [(index.name, list(index.columns.keys())) for index in table.indexes])
print(inspector.get_indexes("reports"), inspector.get_multi_indexes(filter_names=["reports"]))
print(inspector.get_unique_constraints("reports"), inspector.get_check_constraints("reports"))
"""


def reflect(file: Path, imports: str = "") -> subprocess.CompletedProcess[str]:
    """Reflect the table in a process in which every warning is an error."""
    command = [sys.executable, "-W", "error", "-c", REFLECT.format(imports=imports), url_of(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def make_protected(file: Path) -> str:
    """Make a table, protect it, and return what was reflected before."""
    with plain(file) as connection:
        connection.execute("CREATE TABLE reports (id INTEGER PRIMARY KEY, value UNIQUE, remark CHECK (remark <> 'x'))")
        connection.execute("CREATE INDEX users ON reports (remark)")
    before = reflect(file)
    assert before.returncode == 0, before.stderr
    fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK).protect("reports")
    return before.stdout


def test_protection_changes_nothing_that_is_reflected(tmp_path: Path) -> None:
    before = make_protected(tmp_path / "app.db")
    after = reflect(tmp_path / "app.db", "import fencelock.integrations.sqlalchemy")
    assert (after.returncode, after.stderr, after.stdout) == (0, "", before)


def test_without_the_adapter_a_filter_for_one_warning_suffices(tmp_path: Path) -> None:
    """The warning's text is SQLAlchemy's: as soon as it changes, or goes, the adapter's filter has to follow."""
    before = make_protected(tmp_path / "app.db")
    bare = reflect(tmp_path / "app.db")
    assert "SAWarning: Skipped unsupported reflection of expression-based index fencelock_enforce_" in bare.stderr
    line = "Skipped unsupported reflection of expression-based index fencelock_"
    filtered = reflect(tmp_path / "app.db", f"import warnings; warnings.filterwarnings('ignore', {line!r})")
    assert (filtered.returncode, filtered.stdout) == (0, before)
