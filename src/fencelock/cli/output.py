"""Printing results: as JSON for programs, as text for people.

Promise: stdout gets one document: a JSON value on one line, or text. Tokens in JSON are decimal strings, because some
readers round large integers. Text contains no control characters from names that other users chose.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click


def emit(data: object, as_json: bool, text: str) -> None:
    """Print `data` as JSON, or `text`."""
    click.echo(json.dumps(data) if as_json else text)


@contextmanager
def showing_work(text: str) -> Iterator[None]:
    """Show on a terminal that something long is under way; show nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def token_text(token: int | None) -> str | None:
    """Return a token as JSON shows it."""
    return None if token is None else str(token)


def printable(text: str) -> str:
    """Return the text with every non-printable character escaped, because it could control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines of aligned columns under headings; the last column is not padded."""
    lines = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(headings) - 1)]
    return "\n".join(
        "  ".join((*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1])) for line in lines
    )
