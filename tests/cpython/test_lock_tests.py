"""`test.lock_tests`, which CPython runs over its own locks, with fenceline's handles as the lock type.

Each instance is a handle to a lock of its own name in one file, since CPython's tests expect a new lock from each call.
What does not apply is listed with the reason; everything else runs as CPython ships it, in the version that runs here.
"""

import itertools
import tempfile
import unittest
from pathlib import Path

import pytest

import fenceline

lock_tests = pytest.importorskip("test.lock_tests", reason="this interpreter does not ship CPython's own tests")

pytestmark = pytest.mark.reduced

NOT_APPLICABLE = {
    "test_at_fork_reinit": "private to threading: a fork marks our leases as inherited instead (H6)",
    "test_recursion_count": "private to threading.RLock",
    "test__is_owned": "private to threading.RLock",
    "test_release_save_unacquired": "private to threading.RLock, for Condition",
}
_FOLDER = tempfile.TemporaryDirectory(prefix="fl-")
_SOURCE = fenceline.connect(f"sqlite:///{Path(_FOLDER.name) / 'locks.db'}")
_NUMBERS = itertools.count()


def new_lock() -> fenceline.Lock:
    return _SOURCE.lock(f"lock-{next(_NUMBERS)}", ttl=60)


def new_rlock() -> fenceline.RLock:
    return _SOURCE.rlock(f"rlock-{next(_NUMBERS)}", ttl=60)


def applicable(cases: type[unittest.TestCase]) -> type[unittest.TestCase]:
    """Return the cases without those that do not apply, each of which must exist in some version."""
    for name, reason in NOT_APPLICABLE.items():
        if hasattr(cases, name):
            setattr(cases, name, unittest.skip(reason)(getattr(cases, name)))
    return cases


@applicable
class TestLock(lock_tests.LockTests):
    locktype = staticmethod(new_lock)


@applicable
class TestRLock(lock_tests.RLockTests):
    locktype = staticmethod(new_rlock)
