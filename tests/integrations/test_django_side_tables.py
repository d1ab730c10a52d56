"""`manage.py check` warns of tables beside a protected model that stay open to every writer."""

from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import models
from django.test.utils import isolate_apps

from fencelock.integrations.django import protected
from fencelock.integrations.django.checks import check_side_tables
from fencelock.integrations.django.side_tables import side_tables
from tests.integrations.djangos import Report

asked = protected(resource="reports", lock="nightly-report")


def model(name: str, *bases: Any, **members: Any) -> Any:
    """Make a model of the test's own app registry."""
    return type(name, bases or (models.Model,), {"__module__": "books.models", **members})


def key_to(target: Any) -> Any:
    return models.ForeignKey(target, models.CASCADE, related_name="+")


def explicit_through(protect: Callable[[Any], Any]) -> None:
    author = model("Author")
    work = asked(model("Work", authors=models.ManyToManyField(author, through="Authorship")))
    protect(model("Authorship", work=key_to(work), author=key_to(author)))


def relation_of_an_unprotected_model(protect: Callable[[Any], Any]) -> None:
    work = asked(model("Work"))
    protect(model("Shelf", works=models.ManyToManyField(work)))


def parent(protect: Callable[[Any], Any]) -> None:
    document = protect(model("Document", title=models.TextField()))
    asked(model("Work", document))


def child(protect: Callable[[Any], Any]) -> None:
    work = asked(model("Work", title=models.TextField()))
    protect(model("Essay", work))


def foreign_key(protect: Callable[[Any], Any]) -> None:
    work = asked(model("Work"))
    protect(model("Page", work=key_to(work)))


@pytest.mark.parametrize(
    ("shape", "warning"),
    [
        (explicit_through, ("fencelock.W003", "books_authorship", "is an explicit through table of Work")),
        (
            relation_of_an_unprotected_model,
            (
                "fencelock.W003",
                "books_shelf_works",
                "is a many-to-many table of Shelf, which is not protected, with Work",
            ),
        ),
        (parent, ("fencelock.W004", "books_document", "holds the inherited fields of Work")),
        (child, ("fencelock.W004", "books_essay", "holds the fields that Essay adds to Work")),
        (foreign_key, ("fencelock.W005", "books_page", "refers to Work by Page.work")),
    ],
)
def test_a_table_beside_a_protected_one_is_named_until_it_asks_too(
    shape: Callable[[Callable[[Any], Any]], None], warning: tuple[str, str, str]
) -> None:
    with isolate_apps("books") as isolated:
        shape(lambda made: made)
        (side,) = side_tables(isolated.get_models(include_auto_created=True))
        assert (side.id, side.model._meta.db_table, side.why) == warning
    with isolate_apps("books") as isolated:
        shape(asked)
        assert side_tables(isolated.get_models(include_auto_created=True)) == []


def test_tables_of_a_protected_model_itself_and_proxies_are_not_named() -> None:
    with isolate_apps("books") as isolated:
        author = model("Author")
        work = asked(model("Work", authors=models.ManyToManyField(author), before=key_to("self")))
        model("Draft", work, Meta=type("Meta", (), {"proxy": True}))
        assert side_tables(isolated.get_models(include_auto_created=True)) == []


def test_the_check_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_side_tables() == []
    with isolate_apps("books") as isolated:
        model("Page", report=key_to(Report))
        monkeypatch.setattr("fencelock.integrations.django.checks.apps", isolated)
        (message,) = [one for one in run_checks() if one.id.startswith("fencelock.")]
    assert message.msg == "table 'books_page' refers to Report by Page.report, and any program can write it"
    assert "@protected(resource='reports', lock='nightly-report')" in message.hint
