"""Errors that are raised as what they mean keep nothing alive that they came through."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from fenceline.errors import SourceError
from fenceline.stores.naming import NamingErrors, raise_known


class Held:
    """Something that a caller has, a lease for one."""


@pytest.fixture
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def fail(how: str) -> "weakref.ref[Held]":
    """Meet an error in the way of a store, and return a reference to what this frame has had."""
    held = Held()
    naming = NamingErrors(lambda error: SourceError("named") if isinstance(error, KeyError) else None)
    try:
        if how == "block":
            with naming:
                raise KeyError
        try:
            raise KeyError
        except KeyError as error:
            raise_known(SourceError("named"), error)
    except SourceError as error:
        assert isinstance(error.__cause__, KeyError)
    return weakref.ref(held)


@pytest.mark.usefixtures("_without_collector")
@pytest.mark.parametrize("how", ["block", "call"])
def test_h2_an_error_that_is_over_keeps_nothing_that_its_frames_had(how: str) -> None:
    assert fail(how)() is None


def test_an_error_without_a_known_meaning_passes() -> None:
    with pytest.raises(ValueError, match="as it was"), NamingErrors(lambda _: None):
        raise ValueError("as it was")
