"""Marks of tests that run on both SQL servers."""

import pytest

one_version = pytest.mark.parametrize("sql_server", ["postgres18", "mysql"], indirect=True)
"""Runs a test on one version of each server."""
on_postgres = pytest.mark.parametrize("sql_server", ["postgres15", "postgres18"], indirect=True)
on_mysql = pytest.mark.parametrize("sql_server", ["mysql"], indirect=True)
kinds = pytest.mark.parametrize("kind", ["sync", "async"])
"""Runs a test with both public APIs."""
