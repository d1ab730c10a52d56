"""Arguments of locks are checked: names, ttl, timeouts, callbacks, and the URL of the source."""

import math
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock._api import lock_options
from fencelock._api.lock_options import check_lock_options, check_timeout, default_folder, resolve_url, waiting
from fencelock.errors import ConfigError, UnknownSchemeError
from fencelock.protocol.stores import Capabilities

pytestmark = pytest.mark.reduced

CAPABILITIES = Capabilities(ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True)


def options_of(**options: Any) -> lock_options.LockOptions:
    given: dict[str, Any] = {"name": "the-lock", "ttl": 10.0, "timeout": None, "holder": None, "on_lost": None}
    return check_lock_options(CAPABILITIES, **{**given, **options})


@pytest.mark.parametrize(
    ("ttl", "ttl_ms"),
    [(0.1, 100), (1, 1000), (30.0, 30_000), (86_400, 86_400_000), (0.3, 300), (1.001, 1001), (4.35, 4350)],
)
def test_a_ttl_is_seconds_and_is_granted_as_asked(ttl: float, ttl_ms: int) -> None:
    assert options_of(ttl=ttl).ttl_ms == ttl_ms


@pytest.mark.parametrize("ttl", [0.0999, 0, -1, 86_400.001, 10**300, math.inf, math.nan, 1.0005])
def test_a_ttl_outside_the_range_or_between_the_steps_is_refused_and_never_clamped(ttl: Any) -> None:
    with pytest.raises(ConfigError, match=r"'the-lock': ttl .* 0\.1 to 86400 seconds, in steps of 0\.001"):
        options_of(ttl=ttl)


def test_a_ttl_of_a_store_with_a_coarse_step_must_be_on_it() -> None:
    coarse = Capabilities(ttl_min_ms=2_000, ttl_max_ms=60_000, ttl_step_ms=1_000, notifies=True)
    assert check_lock_options(coarse, "the-lock", 5, None, None, None).ttl_ms == 5_000
    with pytest.raises(ConfigError, match="2 to 60 seconds, in steps of 1"):
        check_lock_options(coarse, "the-lock", 5.5, None, None, None)


@pytest.mark.parametrize("timeout", [None, 0, 0.5, 60, threading.TIMEOUT_MAX])
def test_a_timeout_is_seconds_or_for_ever(timeout: float | None) -> None:
    assert options_of(timeout=timeout).timeout == timeout


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, math.inf, threading.TIMEOUT_MAX * 2, True, "1"])
def test_another_timeout_is_refused_when_the_handle_is_made(timeout: Any) -> None:
    with pytest.raises(ConfigError, match=r"timeout is seconds, from 0 to \d{7,} \(threading.TIMEOUT_MAX\), or None"):
        options_of(timeout=timeout)


@pytest.mark.parametrize("name", ["", "\0", "x" * 513, "é" * 257, "\ud800", b"bytes", 7, None])
def test_a_name_outside_the_contract_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError):
        options_of(name=name)


@pytest.mark.parametrize("name", ["x" * 512, "é" * 256, "a/b c%\n", "..", " "])
def test_every_other_name_is_taken(name: str) -> None:
    assert options_of(name=name).name == name


def test_on_lost_must_be_callable() -> None:
    with pytest.raises(ConfigError, match="on_lost must be callable"):
        options_of(on_lost="no")


def test_a_holder_follows_the_rules_of_names() -> None:
    assert options_of(holder="me").holder_now() == "me"
    with pytest.raises(ConfigError):
        options_of(holder="")


def test_the_default_holder_is_asked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child is another holder."""
    the_terms = options_of()
    before = the_terms.holder_now()
    assert str(os.getpid()) in before
    monkeypatch.setattr(os, "getpid", lambda: 424242)
    assert ":424242:" in the_terms.holder_now()


# --- waiting, by the rules of threading.Lock.acquire ----------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ((True, -1, None), (True, None)),
        ((True, -1, 2_500), (True, 2_500)),
        ((True, -1, 0), (True, 0)),
        ((True, 0, None), (True, 0)),
        ((True, 0.0001, None), (True, 1)),
        ((True, 3, 60_000), (True, 3_000)),
        ((False, -1, None), (False, 0)),
        ((False, -1, 60_000), (False, 0)),
        ((1, 2, None), (True, 2_000)),
    ],
)
def test_blocking_and_timeout_mean_what_threading_says(arguments: Any, result: Any) -> None:
    assert waiting(*arguments) == result


@pytest.mark.parametrize("arguments", [(False, 1), (False, 0), (True, -2), (True, -0.5), (True, math.nan)])
def test_what_threading_refuses_as_value_error_is_one_here(arguments: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - threading.Lock, here as the model, says no more
        threading.Lock().acquire(*arguments)
    with pytest.raises(ConfigError) as raised:
        waiting(*arguments, None)
    assert isinstance(raised.value, ValueError)


def test_nan_is_no_timeout() -> None:
    """A loop's timer of NaN never rings: an async `lost.wait` would wait for ever."""
    with pytest.raises(ConfigError, match="a number of seconds, or None to wait without a bound; not nan"):
        check_timeout(math.nan)


@pytest.mark.parametrize("timeout", ["5", b"5", [], object()])
def test_what_threading_refuses_as_type_error_is_a_config_error(timeout: Any) -> None:
    with pytest.raises(TypeError):
        threading.Lock().acquire(True, timeout)
    with pytest.raises(ConfigError, match="number of seconds"):
        waiting(True, timeout, None)


def test_a_flag_is_no_number_of_seconds() -> None:
    with pytest.raises(ConfigError, match="number of seconds, or None to wait without a bound; not True"):
        waiting(True, True, None)


@pytest.mark.parametrize("timeout", [threading.TIMEOUT_MAX * 2, math.inf, 1e300])
def test_what_threading_refuses_as_overflow_is_one_here(timeout: float) -> None:
    with pytest.raises(OverflowError):
        threading.Lock().acquire(True, timeout)
    with pytest.raises(OverflowError):
        waiting(True, timeout, None)
    with pytest.raises(OverflowError, match=r"larger than threading.TIMEOUT_MAX"):
        check_timeout(timeout)


# --- which source ---------------------------------------------------------------------------------
def test_a_url_that_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCELOCK_SOURCE", "sqlite:///other.db")
    assert resolve_url("sqlite:///mine.db") == "sqlite:///mine.db"


def test_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCELOCK_SOURCE", "sqlite:///other.db")
    assert resolve_url(None) == "sqlite:///other.db"


@pytest.mark.parametrize("variable", [None, ""])
def test_then_the_default_file_in_a_private_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv("FENCELOCK_SOURCE", variable)
    folder = tmp_path / "state" / "fencelock"
    monkeypatch.setattr(lock_options, "default_folder", lambda: folder)
    assert resolve_url(None) == f"sqlite:///{folder}/locks.db"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_root_and_others_have_two_default_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_folder() == Path("/var/lib/fencelock")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "fencelock"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_folder() == Path("/home/somebody/.local/state/fencelock")


def test_a_default_folder_that_cannot_be_made_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(lock_options, "default_folder", lambda: tmp_path / "file" / "fencelock")
    with pytest.raises(ConfigError, match=r"set FENCELOCK_SOURCE to a URL"):
        resolve_url(None)


@pytest.mark.parametrize("ttl", ["10", True, None, 1j])
def test_a_ttl_that_is_no_number_is_told_so(ttl: Any) -> None:
    with pytest.raises(ConfigError, match=f"a number of seconds or a timedelta; {ttl!r} is not a number"):
        options_of(ttl=ttl)


def test_a_timedelta_is_a_length_of_time_everywhere(tmp_path: Path) -> None:
    with fencelock.connect("memory://lengths") as source, source.lock("held"):
        lock = source.lock("held", ttl=timedelta(seconds=20), timeout=timedelta(milliseconds=5))
        assert (lock.ttl, lock.timeout) == (20.0, 0.005)
        assert lock.acquire() is None
        assert lock.acquire(timeout=timedelta(0)) is None
        with pytest.raises(ConfigError, match="non-negative"):
            lock.acquire(timeout=-timedelta(seconds=1))
        with source.lock("other", ttl=timedelta(minutes=1)) as lease:
            assert not lease.lost.wait(timedelta(milliseconds=1))
            guard = fencelock.guard(tmp_path / "app.db", resource="r", lock="other")
            with pytest.raises(ConfigError, match="above 0"):
                guard.transaction(lease, idle=timedelta(0))
            guard.transaction(lease, idle=timedelta(seconds=1))
    with pytest.raises(ConfigError, match="older_than must be seconds"):
        fencelock.purge_effects(f"sqlite:///{tmp_path}/app.db", older_than=timedelta(days=-1))


def test_a_path_is_a_sqlite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fencelock.connect(Path("locks.db")) as source:
        assert source.url == f"sqlite:///{tmp_path}/locks.db"
    assert fencelock.guard(Path("app.db"), resource="r", lock="l").url == f"sqlite:///{tmp_path}/app.db"


@pytest.mark.parametrize("use", [fencelock.connect, lambda url: fencelock.guard(url, resource="r", lock="l")])
@pytest.mark.parametrize("url", ["postgresql+asyncpg://h/db", "postgresql+psycopg://h/db", "mysql+pymysql://h/db"])
def test_a_url_that_names_a_driver_is_told_what_to_write(use: Any, url: str) -> None:
    system = url.partition("+")[0]
    with pytest.raises(UnknownSchemeError, match=f"names a driver, as SQLAlchemy's URLs do.* write {system}://"):
        use(url)
