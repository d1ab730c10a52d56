"""The Django app that `INSTALLED_APPS += ["fencelock.integrations.django"]` adds to a project.

Promise: it has no models and no migrations. It registers checks, and keeps the project's one source of locks.
"""

import threading
from typing import Any

from django.apps import AppConfig
from django.core.signals import setting_changed

import fencelock
from fencelock.integrations.django.settings import SETTING, read


class FencelockConfig(AppConfig):
    """The app's configuration."""

    name = "fencelock.integrations.django"
    label = "fencelock"
    verbose_name = "fencelock"

    def __init__(self, *names: Any) -> None:
        super().__init__(*names)
        self._making = threading.Lock()
        self._source: fencelock.Source | None = None

    def ready(self) -> None:
        """Register the checks and the signals, and react when a test overrides the setting."""
        from fencelock.integrations.django import checks, reads, rebuilding

        checks.register_checks()
        reads.connect_signals()
        rebuilding.connect_signals()
        setting_changed.connect(self._forget)

    def source(self) -> fencelock.Source:
        """Return the project's source; the first call connects it."""
        with self._making:
            if self._source is None:
                self._source = fencelock.connect(read().source_url())
            return self._source

    def _forget(self, *, setting: str, **_: Any) -> None:
        if setting == SETTING:
            with self._making:
                former, self._source = self._source, None
            if former is not None:
                former.close()
