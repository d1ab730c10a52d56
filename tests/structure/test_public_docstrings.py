"""Every public name says what it does: its first sentence, before anything else."""

import importlib
import inspect
from collections.abc import Iterator

import pytest

MODULES = ("fencelock", "fencelock.aio")


def public(owner: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield a class or function, and the public members that a class defines itself."""
    yield path, owner
    if inspect.isclass(owner):
        for name, member in vars(owner).items():
            if not name.startswith("_") and (inspect.isroutine(member) or _is_property(member)):
                yield f"{path}.{name}", member


def _is_property(member: object) -> bool:
    return isinstance(member, property)


def unexplained(named: Iterator[tuple[str, object]]) -> list[str]:
    """Return the names without a docstring that begins with a sentence."""
    return [path for path, owner in named if not _has_sentence(inspect.getdoc(owner))]


def _has_sentence(docstring: str | None) -> bool:
    return docstring is not None and docstring.partition("\n\n")[0].rstrip().endswith((".", ":"))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_says_what_it_does(module: str) -> None:
    owner = importlib.import_module(module)
    names = [name for name in owner.__all__ if callable(getattr(owner, name))]
    assert {"connect", "guard"} < set(names)
    found = (pair for name in names for pair in public(getattr(owner, name), name))
    assert unexplained(found) == []


def test_a_silent_name_is_reported() -> None:
    class Silent:
        def told(self) -> None:
            """Say so."""

        def untold(self) -> None: ...

        @property
        def also_untold(self) -> int:
            return 0

    assert unexplained(public(Silent, "S")) == ["S", "S.untold", "S.also_untold"]
