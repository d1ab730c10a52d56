"""Changes rows of a protected table, which is unprotected in this transaction only."""

from typing import Any

from django.db import migrations

from fencelock.integrations.django import ProtectTable, UnprotectTable

RESOURCE = {"resource": "ledger", "lock": "book-keeping"}


def add_interest(apps: Any, _: Any) -> None:
    apps.get_model("ledger", "Account").objects.create(balance=100)


class Migration(migrations.Migration):
    dependencies = (("ledger", "0002_widen"),)
    operations = (
        UnprotectTable("Account", **RESOURCE),
        migrations.RunPython(add_interest, migrations.RunPython.noop),
        ProtectTable("Account", **RESOURCE),
    )
