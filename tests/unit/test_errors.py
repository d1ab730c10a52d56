"""What the errors have in common."""

import inspect
import pickle

import pytest

from fencelock import errors

CLASSES = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, Exception)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_passes_between_processes_as_it_is(kind: type[Exception]) -> None:
    code = getattr(kind.__init__, "__code__", None)  # None: it takes a message alone.
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount] if code else ()
    numbers = {name: number for number, name in enumerate(names)}
    error = kind("what happened", **numbers)
    error.add_note("and where")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - what was just dumped
    assert type(copy) is kind
    assert copy.args == error.args == ("what happened",)
    assert vars(copy) == vars(error)
    assert str(copy) == "what happened"
    assert numbers.items() <= vars(copy).items()
