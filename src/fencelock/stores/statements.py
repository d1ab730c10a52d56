"""SQL kept in data files beside the module that runs it: each statement with a name and a sentence.

A file is a sequence of blocks. Each begins with `-- name: some_name`, followed by comment lines that say what the
statement does, and by the statement itself, up to the next block:

    -- name: read_mark
    -- The mark of one resource; no row if it was never sealed.
    SELECT token, claim FROM fencelock_mark WHERE resource = :resource;

Promise: a file is read once per process, through the package's own loader, so that a package in a zip file works too.
An unknown name is an AttributeError that lists the known ones. Never: SQL composed here.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

_NAME = "-- name:"


class Statements:
    """The statements of one file, each an attribute by its name."""

    def __init__(self, origin: str, texts: dict[str, str]) -> None:
        self._origin = origin
        self._texts = texts
        vars(self).update(texts)

    def __getattr__(self, name: str) -> str:
        """Raise AttributeError for an unknown name; known ones are plain attributes, for speed."""
        known = ", ".join(sorted(self._texts))
        raise AttributeError(f"{self._origin} has no statement {name!r}; it has {known}")

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in the order of the file, in which a schema is created."""
        return iter(self._texts)

    def __getitem__(self, name: str) -> str:
        return cast("str", getattr(self, name))

    def created(self, kind: str) -> list[str]:
        """Return the names of the objects of a kind (TABLE, FUNCTION, …) that the statements create, in their order."""
        made = rf"^ *CREATE (?:UNLOGGED )?{kind} (?:IF NOT EXISTS )?(?:main\.|fencelock\.)?(\w+)"
        return [name for text in self._texts.values() for name in re.findall(made, text, re.MULTILINE)]


@cache
def statements(package: str, file_name: str) -> Statements:
    """Return the statements of a data file of `package`; ValueError if it breaks the form above."""
    return Statements(file_name, parse(read_file(package, file_name), file_name))


def read_file(package: str, file_name: str) -> str:
    """Return the text of a data file of `package`."""
    # importlib.resources does the same, but its import adds 50 ms to each start of a program.
    module: Any = import_module(package)
    path = Path(module.__file__).with_name(file_name)
    return cast("bytes", module.__spec__.loader.get_data(str(path))).decode()


def parse(text: str, origin: str) -> dict[str, str]:
    """Return the statements of `text` by name, without their comments and their last semicolons."""
    texts: dict[str, str] = {}
    for block in ("\n" + text).split("\n" + _NAME)[1:]:
        name, _, rest = block.partition("\n")
        name = name.strip()
        lines = rest.splitlines()
        statement = "\n".join(line for line in lines if not line.startswith("--")).strip()
        if not name.isidentifier() or name in texts or not statement:
            raise ValueError(f"{origin}: the block {name!r} is empty, named twice, or no identifier")
        texts[name] = statement.removesuffix(";")
    return texts
