"""An account, which migrations protect, alter and rename."""

from django.db import models

from fencelock.integrations.django import protected


class Owner(models.Model):
    name = models.CharField(max_length=40)

    def __str__(self) -> str:
        return self.name


@protected(resource="ledger", lock="book-keeping")
class Account(models.Model):
    balance = models.BigIntegerField(default=0)
    owners = models.ManyToManyField(Owner)

    def __str__(self) -> str:
        return str(self.balance)
