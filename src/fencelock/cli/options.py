"""What several commands share: options, their help, how they are passed on, and the names that a shell completes."""

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_COMPLETIONS = 1000
"""How many locks a completion reads."""
SOURCE_HELP = (
    "The source's URL, for example sqlite:///locks.db.  [default: $FENCELOCK_SOURCE, else this user's own file]"
)


def source_option(function: Function) -> Function:
    """Add `--source URL`, passed as `source`: None stands for the default."""
    return click.option("--source", metavar="URL", help=SOURCE_HELP)(function)


def source_url(source: str | None) -> str:
    """Return the URL that `--source` stands for. It makes nothing; `fencelock.connect` makes the default's folder."""
    from fencelock._api.lock_options import resolve_url

    return resolve_url(source, makes_folder=False)


def lock_argument(function: Function) -> Function:
    """Add NAME, passed as `name`: a shell completes it by the locks of the source."""
    return click.argument("name", shell_complete=_complete_lock)(function)


def _complete_lock(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names that begin so; none where the source cannot be asked. It makes no folder and no file."""
    import fencelock

    try:
        with fencelock.connect(source_url(ctx.params.get("source"))) as source:
            names = [info.name for info in islice(source.locks(), MAX_COMPLETIONS)]
    except fencelock.FencelockError:
        return []
    return [name for name in names if name.startswith(incomplete)]


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
