"""The nightly job: takes the lock, writes the report, and on demand stops in the middle of it."""

import os
import signal
from typing import Any

from books.models import Report
from django.core.management.base import BaseCommand

from fencelock.integrations.django import fenced, lock


class Command(BaseCommand):
    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("value")
        parser.add_argument("--freeze", action="store_true")

    def handle(self, *_: Any, value: str, freeze: bool, **__: Any) -> None:
        with lock("nightly-report", ttl=4.0) as lease:
            with fenced(lease, resource="reports"):
                before = Report.objects.get(pk=1).value
            if freeze:
                print("frozen", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            with fenced(lease, resource="reports"):
                Report.objects.filter(pk=1).update(value=f"{before}, {value}")
