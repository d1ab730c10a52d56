"""The setting `FENCELOCK`, and the locks of the source that it names.

Promise: an unknown key is refused, so that a misspelt key does not silently mean the default. Reading opens nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.conf import settings

from fencelock import Lock, Source
from fencelock.errors import ConfigError

SETTING = "FENCELOCK"
SOURCE = "SOURCE"
GUARDS = "GUARDS"
CHECK_READS = "CHECK_READS"


@dataclass(frozen=True, slots=True)
class DjangoSettings:
    """The project's settings for fencelock."""

    source: str | None
    guards: Mapping[str, str]
    checks_reads: bool

    def source_url(self) -> str:
        """Return the source's URL; ConfigError if the project names none."""
        if self.source is None:
            raise ConfigError(
                f"no source of locks is configured: write {SETTING} = {{'{SOURCE}': 'postgresql://…'}} into the "
                f"settings, or take the lock from fencelock.connect(url)"
            )
        return self.source


def read() -> DjangoSettings:
    """Return the settings; ConfigError if they are invalid."""
    given = getattr(settings, SETTING, {})
    form = f"a dict with the keys {SOURCE} (a URL), {GUARDS} (URLs by database alias) and {CHECK_READS} (True or False)"
    if not isinstance(given, Mapping):
        raise ConfigError(f"{SETTING} is {form}")
    if unknown := [repr(key) for key in given if key not in {SOURCE, GUARDS, CHECK_READS}]:
        raise ConfigError(f"{SETTING} has an unknown key, {', '.join(unknown)}: it is {form}")
    source, guards, checks_reads = given.get(SOURCE), given.get(GUARDS, {}), given.get(CHECK_READS, True)
    if not isinstance(source, str | None):
        raise ConfigError(f"{SETTING}['{SOURCE}'] is a URL, such as postgresql://user@host/database")
    if not (isinstance(guards, Mapping) and all(isinstance(url, str) for url in guards.values())):
        raise ConfigError(f"{SETTING}['{GUARDS}'] is a dict of URLs by database alias")
    if not isinstance(checks_reads, bool):
        raise ConfigError(f"{SETTING}['{CHECK_READS}'] is True or False")
    return DjangoSettings(source, guards, checks_reads)


def source() -> Source:
    """Return the project's source of locks, one per process. ConfigError if the project names none, or lacks this app.

    Do not close it; its leases are released when the process exits.
    """
    try:
        app = apps.get_app_config("fencelock")
    except LookupError:
        raise ConfigError("add 'fencelock.integrations.django' to INSTALLED_APPS") from None
    return app.source()  # type: ignore[no-any-return]


def lock(name: str, **options: Any) -> Lock:
    """Return a lock of the project's source: `source().lock(name, …)`."""
    return source().lock(name, **options)
