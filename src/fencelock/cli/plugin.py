"""What a command of another package may use of the CLI: options, output, complaints and exit codes. Public.

A package adds a command to `fencelock` by an entry point in the group `fencelock.commands`:

    [project.entry-points."fencelock.commands"]
    count = "my_package.count:count"

    @click.command()
    @source_option
    @json_option
    def count(source: str | None, as_json: bool) -> int:
        \"\"\"Count the locks; exits with 1 if there are none.\"\"\"
        with fencelock.connect(source) as connected:
            found = len(list(connected.locks()))
        emit({"locks": found}, as_json, f"{found} locks")
        return 0 if found else NEGATIVE_RESULT

Promise: a command returns its exit code, or None for 0. It prints results with `emit`, so that stdout gets one
document, and everything else with `complain`. FencelockError and click.UsageError become one line on stderr and an
exit code, also under `--json`; a command need not catch them.
"""

from fencelock.cli.errors import (
    LEASE_LOST,
    NEGATIVE_RESULT,
    NOT_OBTAINED,
    SIGNALLED,
    UNAVAILABLE,
    USAGE,
    complain,
)
from fencelock.cli.options import guard_option, json_option, reason_option, source_option, source_url
from fencelock.cli.output import emit, printable, table, token_text

__all__ = [
    "LEASE_LOST",
    "NEGATIVE_RESULT",
    "NOT_OBTAINED",
    "SIGNALLED",
    "UNAVAILABLE",
    "USAGE",
    "complain",
    "emit",
    "guard_option",
    "json_option",
    "printable",
    "reason_option",
    "source_option",
    "source_url",
    "table",
    "token_text",
]
