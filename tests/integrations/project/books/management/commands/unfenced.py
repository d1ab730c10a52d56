"""A forgotten script that writes without a lock."""

from typing import Any

from books.models import Report
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    def handle(self, *_: Any, **__: Any) -> None:
        Report.objects.update(value="unfenced")
