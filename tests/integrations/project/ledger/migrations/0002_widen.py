"""Alters a column: on SQLite, Django copies the table and drops the old one."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("ledger", "0001_initial"),)
    operations = (migrations.AlterField("Account", "balance", models.BigIntegerField(default=0)),)
