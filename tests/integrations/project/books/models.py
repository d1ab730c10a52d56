"""A report that only the holder of a lock may write, with its tags, and a note that anybody may."""

from django.db import models

from fencelock.integrations.django import protected


class Note(models.Model):
    value = models.CharField(max_length=40)

    def __str__(self) -> str:
        return self.value


@protected(resource="reports", lock="nightly-report")
class Report(models.Model):
    value = models.CharField(max_length=40, unique=True)
    tags = models.ManyToManyField(Note)

    def __str__(self) -> str:
        return self.value
