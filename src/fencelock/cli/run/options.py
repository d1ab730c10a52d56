"""The options of `fencelock run`, checked before anything is started.

Promise: an option outside its range is a usage error that says what to write instead.
"""

import math
import os
from typing import NamedTuple

import click

DEFAULT_TTL_S = 30.0
MAX_DEFAULT_GRACE_S = 10.0
_DEFAULT_GRACE_PER_TTL = 6
_MAX_GRACE_PER_TTL = 3
"""The lease is renewed at a third of its ttl: with a longer grace, one late renewal would end CMD."""


class RunOptions(NamedTuple):
    """The options of one run; `wait` is None for no limit."""

    name: str
    words: tuple[str, ...]
    source: str | None
    ttl: float
    wait: float | None
    grace_ms: int
    guards: tuple[str, ...]
    holder: str
    once: str | None = None
    leads: bool = False
    """Whether another campaign follows a loss, and CMD has the grace to end after SIGTERM or SIGINT."""
    pause_s: float = 0.0

    @classmethod
    def checked(  # noqa: PLR0913
        cls,
        *,
        name: str,
        words: tuple[str, ...],
        source: str | None,
        ttl: float,
        wait: float | None,
        no_wait: bool,
        grace: float | None,
        guards: tuple[str, ...],
        holder: str | None,
        once: str | None = None,
    ) -> "RunOptions":
        """Return the options; UsageError if one is outside its range."""
        if no_wait and wait is not None:
            raise click.UsageError("--wait and --no-wait exclude each other: write one of them")
        if wait is not None and not (math.isfinite(wait) and wait >= 0):
            raise click.UsageError(f"--wait {wait:g}: write seconds, 0 or more; leave it out to wait without limit")
        if once is not None and len(guards) != 1:
            raise click.UsageError(f"--once {once}: write one --guard URL, which keeps the key")
        return cls(
            name=name,
            words=words,
            source=source,
            ttl=ttl,
            wait=0.0 if no_wait else wait,
            grace_ms=_grace_ms(ttl, grace),
            guards=guards,
            holder=holder or _default_holder(words),
            once=once,
        )


def _grace_ms(ttl: float, grace: float | None) -> int:
    if not math.isfinite(ttl) or ttl <= 0:
        raise click.UsageError(f"--ttl {ttl:g}: write seconds, for example --ttl {DEFAULT_TTL_S:g}")
    if grace is None:
        return int(1000 * min(ttl / _DEFAULT_GRACE_PER_TTL, MAX_DEFAULT_GRACE_S))
    longest = ttl / _MAX_GRACE_PER_TTL
    if not 0 <= grace <= longest:
        raise click.UsageError(
            f"--grace {grace:g} with --ttl {ttl:g}: write 0 to {longest:g}, a third of the ttl, or a longer --ttl"
        )
    return int(1000 * grace)


def _default_holder(words: tuple[str, ...]) -> str:
    """Return `host:pid:CMD`, CMD without its folder."""
    program = os.path.basename(words[0]).encode(errors="backslashreplace").decode()
    return f"{os.uname().nodename}:{os.getpid()}:{program}"
