"""CPython's own tests of locks, run on fencelock's: whoever knows `threading` knows what to expect.

They come with most Pythons, as the module `test.lock_tests`; without it this file is skipped. Every test runs but
those of `DOES_NOT_APPLY`, each with its reason.
"""

import itertools
import shutil
import unittest
from pathlib import Path
from typing import Any

import pytest

import fencelock
from tests.support.helpers import folder_in_memory, wait_until

lock_tests = pytest.importorskip("test.lock_tests", reason="this Python comes without test.lock_tests")

pytestmark = pytest.mark.reduced

_CONDITION = "part of what threading.Condition asks of an RLock, by private names; over one of ours it refuses to wait"
DOES_NOT_APPLY = {
    "LockTests": {
        "test_at_fork_reinit": "a private way to free a lock in a forked child; here the parent keeps it (H6)",
    },
    "RLockTests": {
        "test_release_save_unacquired": _CONDITION,
        "test_recursion_count": _CONDITION,
        "test__is_owned": _CONDITION,
    },
}


class OnALockOfOurs:
    """Each `locktype()` is a new lock of one source, so that a lock which a test leaves held is in nobody's way."""

    kind: str
    folder: Path
    source: fencelock.Source
    names = itertools.count()

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = folder_in_memory("fl-")
        cls.source = fencelock.connect(f"sqlite:///{cls.folder}/locks.db")
        # The tests count threads: the keeper starts here.
        with cls.source.lock("first"):
            pass

    @classmethod
    def tearDownClass(cls) -> None:
        wait_until(lambda: not any(info.is_held for info in cls.source.locks()))
        cls.source.close()
        shutil.rmtree(cls.folder)

    def locktype(self) -> Any:
        return getattr(self.source, self.kind)(f"{self.kind}{next(self.names)}", ttl=60.0)


def without(base: type[unittest.TestCase], exceptions: dict[str, str]) -> dict[str, Any]:
    """Return skipping stand-ins for those tests of the class that do not apply."""
    found = {name: reason for name, reason in exceptions.items() if hasattr(base, name)}
    return {name: unittest.skip(reason)(getattr(base, name)) for name, reason in found.items()}


class LockTests(OnALockOfOurs, lock_tests.LockTests):  # type: ignore[misc, name-defined]
    kind = "lock"
    locals().update(without(lock_tests.LockTests, DOES_NOT_APPLY["LockTests"]))


class RLockTests(OnALockOfOurs, lock_tests.RLockTests):  # type: ignore[misc, name-defined]
    kind = "rlock"
    locals().update(without(lock_tests.RLockTests, DOES_NOT_APPLY["RLockTests"]))


@pytest.mark.parametrize("name", DOES_NOT_APPLY)
def test_what_does_not_apply_uses_private_names(name: str) -> None:
    """A test is left out because it asks for a name of threading's own, and for no other cause."""
    base = getattr(lock_tests, name)
    for test in DOES_NOT_APPLY[name]:
        if hasattr(base, test):
            names = getattr(base, test).__code__.co_names
            inner = [code.co_names for code in getattr(base, test).__code__.co_consts if hasattr(code, "co_names")]
            used = {used for some in (names, *inner) for used in some}
            assert used & {"_at_fork_reinit", "_release_save", "_recursion_count", "_is_owned"}, test


def test_the_module_is_the_interpreters_own() -> None:
    assert Path(lock_tests.__file__).parts[-2:] == ("test", "lock_tests.py")
