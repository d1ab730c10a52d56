"""What is not installed is named, with the extra that installs it."""

import subprocess
import sys

import pytest

CASES = [
    ("sqlalchemy", "import fencelock.integrations.sqlalchemy", "sqlalchemy"),
    ("alembic", "import fencelock.integrations.alembic", "alembic"),
    ("django", "import fencelock.integrations.django", "django"),
    ("botocore", "import fencelock.s3", "aws"),
    ("psycopg", "from fencelock.integrations.urls import postgres_url; postgres_url({})", "postgres"),
]


@pytest.mark.parametrize(("absent", "program", "extra"), CASES, ids=[case[0] for case in CASES])
def test_a_missing_package_is_named(absent: str, program: str, extra: str) -> None:
    command = [sys.executable, "-c", f"import sys; sys.modules[{absent!r}] = None; {program}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "MissingDependencyError" in last
    assert f"from a clone of fencelock, run pip install '.[{extra}]'" in last
