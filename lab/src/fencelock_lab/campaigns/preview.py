"""What a campaign would touch, shown beforehand without a connection.

Promise: a campaign writes to nothing that is not listed. The names lack the source's id, which is not asked for.
"""

from pathlib import Path
from typing import Any

from fencelock.errors import SourceUnavailableError
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.targets import make_target


def touched(settings: CampaignSettings) -> dict[str, Any]:
    """Return what a campaign with these settings would make, use and leave behind.

    SourceUnavailableError if the guard's file does not exist.
    """
    urls = settings.shown_urls()
    _check_there(urls["guard"])
    numbers = range(settings.locks)
    targets = [make_target(settings, number) for number in numbers]
    return {
        **urls,
        "locks": [settings.lock(number) for number in numbers],
        "resources": [resource for target in targets for resource in target.resources],
        "makes": [name for target in targets for resource in target.resources for name in target.made_for(resource)],
        "processes": settings.workers,
        "ttl": settings.ttl,
        "duration": settings.duration,
        "faults": list(settings.faults),
        "stays": [
            "the locks' last tokens at the source",
            "what the guard or the service keeps for each resource's token"
            if settings.has_texts
            else "the guard's own schema, a mark in it for each resource, and its audit entries",
        ],
    }


def _check_there(guard_url: str) -> None:
    scheme, _, path = guard_url.partition(":///")
    if scheme == "sqlite" and not Path(path).exists():
        raise SourceUnavailableError(
            f"{path} does not exist, and a guard protects an existing database: create it first, or correct --guard"
        )


def preview(settings: CampaignSettings) -> str:
    """Return the same as text."""
    data = touched(settings)
    lines = [f"{what:<10} {value}" for what, value in data.items() if not isinstance(value, list)]
    for what in ("locks", "resources", "makes", "faults", "stays"):
        lines += [f"{what:<10} {one}" for one in data[what]]
    return "\n".join(lines)
