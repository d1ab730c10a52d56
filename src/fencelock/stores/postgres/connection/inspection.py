"""What `fencelock doctor` says of both halves of a PostgreSQL schema.

Promise: the same words for the same finding.
"""

from fencelock.model import Finding


def open_functions(url: str, power: str) -> Finding:
    """Return the finding about a schema whose functions everybody may call."""
    return Finding(
        "open-functions",
        f"every role with USAGE on the schema fencelock at {url} may call the functions that are for its owner, and so "
        f"{power}: the schema was restored without its privileges",
        "restore it again, with its privileges (pg_dump and pg_restore without --no-privileges)",
    )
