"""Exceptions of signal handlers at any place of the guard of files: they leave no lock and no descriptor behind."""

import os
from contextlib import suppress
from itertools import count

import pytest

from fencelock.stores.files.guard import folder as folder_module
from fencelock.testing import GuardConformance
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from tests.conformance.test_files import InFolder
from tests.files.guarded import GuardedFolder, open_descriptors

FILES = "/fencelock/stores/files/guard/"
DESCRIPTORS = "/fencelock/stores/descriptors.py"


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


def test_an_interrupted_block_closes_its_own_descriptors_once(folder: GuardedFolder) -> None:
    """A number that is closed twice may be another file of the program by then."""
    folder.write(5, name="text")
    for place in count():
        before, others = open_descriptors(folder), list[int]()
        with suppress(*INTERRUPTS), folder.guard.transaction(folder.lease(5)) as txn:
            try:
                with interrupted_at(place, FILES, DESCRIPTORS) as interruption:
                    txn.read("name")
            finally:
                others += [os.open(folder.base, os.O_RDONLY) for _ in range(10)]
        for other in others:
            os.close(other)
        assert open_descriptors(folder) == before, f"at place {place}"
        if not interruption.has_come:
            break
    assert place > 30


def test_an_interrupted_operation_leaves_no_descriptor_open(folder: GuardedFolder) -> None:
    for place in count():
        before = open_descriptors(folder)
        with suppress(*INTERRUPTS), interrupted_at(place, FILES, DESCRIPTORS) as interruption:
            folder.write(5, name="text")
        assert open_descriptors(folder) == before, f"at place {place}"
        if not interruption.has_come:
            break
    assert place > 100


@pytest.mark.campaign
class TestEveryPlace(InFolder, GuardConformance):
    """The kit's own check, in all files of the store; in `make test` it interrupts the commit alone."""

    interrupted_files = (FILES,)
    __test__ = True


for _name in dir(GuardConformance):
    if _name.startswith("test_") and "interrupted" not in _name:
        setattr(TestEveryPlace, _name, None)
