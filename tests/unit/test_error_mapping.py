"""Mapped errors keep nothing alive from the frames that they passed through."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fencelock.errors import SourceError
from fencelock.stores.errors import ErrorMapper, raise_mapped


class Held:
    """An object of a caller, for example a lease."""


@pytest.fixture
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def by_block() -> None:
    """Meet an error in a block."""
    with ErrorMapper(lambda error: SourceError("named") if isinstance(error, KeyError) else None):
        raise KeyError


def by_call() -> None:
    """Meet an error in an `except` clause."""
    try:
        {}["none"]
    except KeyError as error:
        raise_mapped(SourceError("named"), error)


def meet(way: Callable[[], None]) -> "weakref.ref[Held]":
    """Map an error as a store does, and return a weak reference to an object of this frame."""
    held = Held()
    with suppress(SourceError):
        way()
    return weakref.ref(held)


@pytest.mark.usefixtures("_without_collector")
@pytest.mark.parametrize("way", [by_block, by_call])
def test_h2_an_error_that_is_over_keeps_nothing_that_its_frames_had(way: Callable[[], None]) -> None:
    with pytest.raises(SourceError, match="named") as raised:
        way()
    assert isinstance(raised.value.__cause__, KeyError)
    assert meet(way)() is None


def test_an_error_without_a_known_meaning_passes() -> None:
    with pytest.raises(ValueError, match="as it was"), ErrorMapper(lambda _: None):
        raise ValueError("as it was")
