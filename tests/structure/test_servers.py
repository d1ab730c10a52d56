"""A test without its program skips, and says what to install; in CI it fails."""

import pytest

from tests.servers import need


@pytest.fixture
def empty_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")


def test_a_program_that_is_there_is_found() -> None:
    assert need("sh").endswith("/sh")


def test_a_missing_program_skips_with_the_command(empty_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCELINE_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="gcc is missing: as root, run apt-get install gcc libc6-dev"):
        need("gcc")


def test_a_missing_program_fails_where_servers_are_required(empty_path: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCELINE_REQUIRE_SERVERS", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install strace"):
        need("strace")
