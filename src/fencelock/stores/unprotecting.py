"""What every SQL guard says of a request to unprotect what is not protected.

Promise: the same words on each store, with the name as the user wrote it, and where to look. Never: a decision.
"""

from fencelock.errors import GuardError


def nothing_protected(resource: str) -> GuardError:
    """Return the error for a resource without a table."""
    return GuardError(f"resource {resource!r} protects no table here: `fencelock marks` lists the resources")


def not_protected(table: str, resource: str) -> GuardError:
    """Return the error for a table that the resource does not protect."""
    return GuardError(f"table {table!r} is not protected by resource {resource!r}: `fencelock marks` lists what is")
