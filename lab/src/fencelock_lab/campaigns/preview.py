"""What a campaign would touch, said beforehand: names and places, nothing asked of anybody.

Promise: what is listed is all that a campaign writes to. A source's id, which is part of the names, is not asked for.
"""

from typing import Any

from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.targets import make_target


def touched(settings: CampaignSettings) -> dict[str, Any]:
    """Return what a campaign with these settings would make, use and leave behind."""
    numbers = range(settings.locks)
    places = [make_target(settings, number) for number in numbers]
    return {
        **settings.shown_urls(),
        "locks": [settings.lock(number) for number in numbers],
        "resources": [resource for place in places for resource in place.resources],
        "makes": [name for place in places for resource in place.resources for name in place.made_for(resource)],
        "processes": settings.workers,
        "ttl": settings.ttl,
        "duration": settings.duration,
        "faults": list(settings.faults),
        "stays": [
            "the locks' last tokens at the source",
            "the guard's own schema, a mark in it for each resource, and its audit entries",
        ],
    }


def preview(settings: CampaignSettings) -> str:
    """Return the same as text."""
    data = touched(settings)
    lines = [f"{what:<10} {value}" for what, value in data.items() if not isinstance(value, list)]
    for what in ("locks", "resources", "makes", "faults", "stays"):
        lines += [f"{what:<10} {one}" for one in data[what]]
    return "\n".join(lines)
