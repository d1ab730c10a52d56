"""Creates the tables, and protects them in the same transaction where DDL has one."""

from django.db import migrations, models

from fencelock.integrations.django import ProtectTable


class Migration(migrations.Migration):
    initial = True
    operations = (
        migrations.CreateModel(
            "Owner", [("id", models.BigAutoField(primary_key=True)), ("name", models.CharField(max_length=40))]
        ),
        migrations.CreateModel(
            "Account",
            [
                ("id", models.BigAutoField(primary_key=True)),
                ("balance", models.IntegerField(default=0)),
                ("owners", models.ManyToManyField("ledger.owner")),
            ],
        ),
        ProtectTable("Account", resource="ledger", lock="book-keeping"),
    )
