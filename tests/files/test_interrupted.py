"""Exceptions of signal handlers at any place of the guard of files: they leave no lock behind."""

from itertools import count

import pytest

from fencelock.stores.files.guard import folder as folder_module
from fencelock.testing import GuardConformance
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from tests.conformance.test_files import InFolder
from tests.files.guarded import GuardedFolder

FILES = "/fencelock/stores/files/guard/"


def test_an_interrupted_operation_frees_the_lock(folder: GuardedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when the exception is forgotten, whose frames refer to the open folder."""
    monkeypatch.setattr(folder_module, "LOCK_TIMEOUT_S", 0.1)
    kept = []
    for place in count():
        try:
            with interrupted_at(place, FILES) as interruption:
                folder.guard.mark()
        except INTERRUPTS as error:
            kept.append(error)
        assert folder.guard.mark().token == 0
        if not interruption.has_come:
            break
    assert len(kept) > 30


@pytest.mark.campaign
class TestEveryPlace(InFolder, GuardConformance):
    """The kit's own check, in all files of the store; in `make test` it interrupts the commit alone."""

    interrupted_files = (FILES,)
    __test__ = True


for _name in dir(GuardConformance):
    if _name.startswith("test_") and "interrupted" not in _name:
        setattr(TestEveryPlace, _name, None)
