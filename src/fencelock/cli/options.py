"""The options that several commands share: their names, their help, and how they are passed on."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

SOURCE_HELP = (
    "The source's URL, for example sqlite:///locks.db.  [default: $FENCELOCK_SOURCE, else this user's own file]"
)


def source_option(function: Function) -> Function:
    """Add `--source URL`, passed as `source`: None stands for the default."""
    return click.option("--source", metavar="URL", help=SOURCE_HELP)(function)


def json_option(function: Function) -> Function:
    """Add `--json`, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, tokens as strings.")(function)


def reason_option(*, is_required: bool) -> Callable[[Function], Function]:
    """Add `--reason TEXT`, passed as `reason`; the store keeps it."""
    return click.option("--reason", metavar="TEXT", required=is_required, help="Why; the store keeps it.")


def guard_option(help_text: str) -> Callable[[Function], Function]:
    """Add `--guard URL`, which may be repeated, passed as `guards`."""
    return click.option("--guard", "guards", metavar="URL", multiple=True, help=f"{help_text} May be repeated.")


def resource_option(help_text: str, *, is_required: bool = True) -> Callable[[Function], Function]:
    """Add `--resource R`."""
    return click.option("--resource", metavar="R", required=is_required, help=help_text)
