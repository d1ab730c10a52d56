"""`fencelock lead`: run a command whenever this process is the leader, and campaign again after a loss.

Promise: as `fencelock run`, of which each term is one, in a process image of its own: CMD's process is forked before
there is a lock, a thread or a connection. Between two failures in a row the pause grows, up to a bound. SIGTERM and
SIGINT end it within the grace. Never: a term after such a signal.
"""

import os
from typing import Any

import click

from fencelock._api.leading import LONGEST_PAUSE_S, BackOff
from fencelock._platform import check_command
from fencelock.cli import AGAIN
from fencelock.cli.errors import complain
from fencelock.cli.options import guard_option, lock_argument, source_option
from fencelock.cli.run import RunCommand, grace_option, holder_option, ttl_option
from fencelock.cli.run.options import RunOptions

_FAILURES_VARIABLE = "FENCELOCK_FAILURES"
"""How many terms in a row have failed: this process tells the one that it becomes."""


@click.command(cls=RunCommand)
@lock_argument
@source_option
@ttl_option
@grace_option
@guard_option("At the end of a term, close the resources of this URL that are bound to NAME.")
@holder_option
def lead(**given: Any) -> int:
    """Run CMD while leading, and again after a loss.

    As `fencelock run` with the lock NAME, but for what follows a loss: CMD's group is ended, and CMD is run again, with
    a higher token, once the lock is obtained again. A source that cannot be reached is tried again,
    too. If CMD ends by itself, this process ends with its exit code.

    \b
    Example:
      fencelock lead scheduler --ttl 15 -- python scheduler.py

    \b
    Exit codes: CMD's own, 128+n if signal n ended it or the wait, 126 or 127 if it cannot be
    executed, 76 if the lease was lost while a signal was ending CMD. SIGTERM and SIGINT are passed
    on to CMD's process group, which is killed if it has not ended after the grace.
    """
    check_command("lead")
    from fencelock.cli.run.session import hold_and_run

    failures = _take_failures()
    options = RunOptions.checked(wait=None, no_wait=False, **given)
    pause_s = _pause_s(failures)
    if pause_s:
        complain(f"lock {options.name!r}: campaigning again in {pause_s:.1f} s")
    code, term_s = hold_and_run(options._replace(leads=True, pause_s=pause_s))
    if code == AGAIN:
        os.environ[_FAILURES_VARIABLE] = str(1 if term_s >= LONGEST_PAUSE_S else failures + 1)
    return code


def _take_failures() -> int:
    text = os.environ.pop(_FAILURES_VARIABLE, "0")
    return int(text) if text.isdecimal() else 0


def _pause_s(failures: int) -> float:
    back_off = BackOff()
    pause_s = 0.0
    for _ in range(min(failures, 100)):
        pause_s = back_off.after_failure_s(0.0)
    return pause_s


COMMANDS = [lead]
