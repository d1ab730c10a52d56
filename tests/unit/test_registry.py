"""The scheme table: the store of each URL, the refused URLs and their reasons, and stores of other packages."""

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from traceback import format_exception_only
from typing import Any

import pytest

import fencelock
from fencelock import ConfigError, MissingDependencyError, UnknownSchemeError, UnsafeSourceError
from fencelock.stores import registry
from fencelock.stores.registry import guard_store, shown_url, source_store
from fencelock.stores.sqlite.guard.store import SQLiteGuard
from fencelock.stores.sqlite.source.store import SQLiteSource

Offer = Callable[..., None]


@pytest.mark.reduced
def test_sqlite_is_the_store_of_its_scheme(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    assert isinstance(source_store(url), SQLiteSource)
    assert isinstance(source_store(url.replace("sqlite", "SQLite")), SQLiteSource)
    assert isinstance(guard_store(url), SQLiteGuard)
    assert list(tmp_path.iterdir()) == []  # Nothing is opened yet.


def test_tables_are_sorted_and_name_what_exists() -> None:
    for table in (registry.SOURCES, registry.GUARDS, registry.UNSAFE_SOURCES):
        assert list(table) == sorted(table)
    assert not set(registry.UNSAFE_SOURCES) & set(registry.SOURCES)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "memcached", "nats", "REDIS"])
def test_store_that_can_issue_a_token_twice_is_refused_with_the_reason(scheme: str) -> None:
    with pytest.raises(UnsafeSourceError) as caught:
        fencelock.connect(f"{scheme}://user:secret@localhost:1234/0")
    said = str(caught.value)
    assert registry.UNSAFE_SOURCES[scheme.lower()] in said
    assert "Use one of: " in said
    assert "sqlite://" in said
    assert "secret" not in said


@pytest.mark.reduced
def test_unknown_scheme_names_the_known_ones() -> None:
    for lookup in (source_store, guard_store, fencelock.connect):
        with pytest.raises(UnknownSchemeError, match=r"no store is known for gopher://; known here: .*sqlite://"):
            lookup("gopher://somewhere/else")


@pytest.mark.parametrize(
    ("lookup", "url", "meant"),
    [
        (source_store, "postgressql://db/app", r"\(did you mean postgresql://\?\); known here: "),
        (guard_store, "reds://db/0/app", r"\(did you mean redis://\?\); known here: "),
        (source_store, "postgresql:/db/app", r"'postgresql:…' is not a URL: write for example postgresql://…"),
        (guard_store, "file:/srv/exports", r"'file:…' is not a URL: write for example file://…"),
        (source_store, "sqlite:/locks.db", r"'sqlite:…' is not a URL: write for example sqlite:///locks\.db"),
    ],
)
def test_a_mistyped_scheme_is_told_what_was_meant(lookup: Callable[[str], Any], url: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=meant):
        lookup(url)


def test_a_store_that_is_only_the_other_half_is_told_apart_from_an_unknown_one() -> None:
    with pytest.raises(UnknownSchemeError, match=r"is a guard, and no source of tokens: .*Sources are: .*sqlite://"):
        source_store("file:///srv/exports")
    with pytest.raises(
        UnknownSchemeError, match=r"memory:// is a source of tokens, and no guard: .*Guards are: .*s3://"
    ):
        guard_store("memory://")


@pytest.mark.parametrize("url", ["", "locks.db", "/var/lib/locks.db", "://x", "sqlite:locks.db", "sqlite:/locks.db"])
def test_text_that_is_no_url_is_refused_with_an_example(url: str) -> None:
    for lookup in (source_store, guard_store):
        with pytest.raises(ConfigError, match=r"is not a URL: write for example sqlite:///locks\.db"):
            lookup(url)


@pytest.mark.parametrize("url", [b"sqlite:///x", 7, None])
def test_url_must_be_text_or_a_path(url: object) -> None:
    with pytest.raises(ConfigError, match="a URL must be a str or a path, not"):
        source_store(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite://x",
        "sqlite://host/x",
        "sqlite:///",
        "sqlite:////",
        "sqlite:///x/",
        "sqlite:///:memory:",
        "sqlite:///a\0b",
        "sqlite:///locks.db?timeout=5",
        "sqlite:////srv/locks.db?mode=rw&password=secret",
    ],
)
def test_sqlite_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source_store(url)
    assert not isinstance(caught.value, UnknownSchemeError)
    assert "\0" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////var/lib/a@b.db", "sqlite:////var/lib/a@b.db"),
        ("sqlite:///relative.db", "sqlite:///relative.db"),
        ("postgresql://user:secret@host/db", "postgresql://…@host/db"),
        ("postgresql://user:se@cret@host/db", "postgresql://…@host/db"),
        ("postgresql://user:se/cret@host/db", "postgresql://…@host/db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("user:secret@host/db", "user:…"),
        ("user@host/db", "…@host/db"),
        ("python:user:secret", "python:…"),
        ("user:secret@postgresql://host/db", "user:…"),
        ("nothing", "nothing"),
        ("host=db user=me password=secret", "host=…"),
    ],
)
def test_shown_url_has_no_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert "cret" not in shown_url(url)


def test_message_about_a_url_without_scheme_hides_its_password() -> None:
    with pytest.raises(ConfigError, match="'user:…' is not a URL") as caught:
        source_store("user:secret@host/db")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("lookup", [source_store, guard_store])
def test_an_unknown_parameter_of_a_postgres_url_is_named_with_the_known_ones(lookup: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigError, match=r"no parameter 'ssl_mode'; known: .*sslmode") as caught:
        lookup("postgresql://user:secret@host/db?connect_timeout=5&ssl_mode=require&password=secret")
    assert "secret" not in str(caught.value).replace("oauth_client_secret", "")


PASSWORDS = (
    "hunter2",
    *("hunter2/x", "x/hunter2", "hunter2?x", "x?hunter2", "x?hunter2=1", "hunter2@x", "x@hunter2", "hunter2#x"),
    *("hunter2:x", "x:hunter2", "hunter2,x", "[hunter2", "hunter2]", "%hunter2", "hunter 2hunter2", "hunter2\0"),
    *("x?ssl_mode=hunter2", "x?tls=hunter2", "x?acl=hunter2", "x?auth=hunter2", "x?sslmode=hunter2", "x?port=hunter2"),
)
FORMS = (
    *("://u:{}@host/db", "://u:{}@host", "://u:{}@", "://:{}@host/db", "://u:{}@/db", "://u:{}@host:x/db"),
    *("://u:{}@host:99999999/db", "://u:{}@a,b:x/db", "://u:{}@[::1/db", "://u:{}@host/a/../b", "://u:{}@host/"),
    *("://u:{}@host/db?nosuch=1", "://u:{}@host/db?acl=x", "://u:{}@host/db?tls=x", "://u:{}@host/db?ssl_mode=x"),
    *(":///db?password={}&nosuch=1", ":///?auth={}", ":/u:{}@host/db", ":u:{}@host/db"),
    *(":u:{}", ":{}", "u:{}@postgresql://host/db", ":://u:{}@host/db"),
)


LOOKUPS = [(source_store, scheme) for scheme in ("", *registry.SOURCES)]
LOOKUPS += [(guard_store, scheme) for scheme in registry.GUARDS]


@pytest.mark.parametrize(("lookup", "scheme"), LOOKUPS)
def test_no_message_about_a_url_repeats_a_password(lookup: Callable[[str], Any], scheme: str) -> None:
    """However the URL is misspelt, and whatever of the password it does not escape."""
    refused = 0
    for form, password in product(FORMS, PASSWORDS):
        url = scheme + form.format(password)
        try:
            shown = shown_url(lookup(url).url)
        except (ConfigError, UnsafeSourceError) as error:
            shown = "".join(format_exception_only(error))
            refused += 1
        # After these, three slashes begin a name, and no password is told from it.
        if scheme not in {"", "memory", "sqlite"} or not form.startswith(":///"):
            assert "hunter2" not in shown, url
    assert refused


# --- stores that other packages bring ---
@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Install packages that offer `other://` by an entry point, each in a folder of its own."""

    def install(package: str, *, group: str = registry.SOURCE_GROUP, scheme: str = "other", code: str = "") -> None:
        folder = tmp_path / package
        (folder / f"{package}-1.0.dist-info").mkdir(parents=True)
        (folder / f"{package}-1.0.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n")
        entry = f"[{group}]\n{scheme} = {package}:Store\n"
        (folder / f"{package}-1.0.dist-info" / "entry_points.txt").write_text(entry)
        (folder / f"{package}.py").write_text(
            code or "class Store:\n    def __init__(self, url):\n        self.url = url\n"
        )
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, package, raising=False)

    return install


@pytest.mark.reduced
def test_other_package_brings_a_store_by_an_entry_point(offer: Offer) -> None:
    offer("fl_one")
    assert source_store("other://place").url == "other://place"
    with pytest.raises(UnknownSchemeError):
        guard_store("other://place")


def test_other_package_brings_a_guard_by_an_entry_point(offer: Offer) -> None:
    offer("fl_two", group=registry.GUARD_GROUP)
    assert guard_store("other://place").url == "other://place"


def test_two_packages_with_one_scheme_are_refused_by_name(offer: Offer) -> None:
    offer("fl_three")
    offer("fl_four")
    with pytest.raises(ConfigError, match=r"\(fl_four:Store, fl_three:Store\): uninstall all but one"):
        source_store("other://place")


def test_other_package_cannot_replace_a_scheme_of_ours(offer: Offer) -> None:
    offer("fl_five", scheme="sqlite")
    offer("fl_six", scheme="redis")
    assert isinstance(source_store("sqlite:///x.db"), SQLiteSource)
    with pytest.raises(UnsafeSourceError):
        source_store("redis://place")


@pytest.mark.parametrize("code", ["import fl_no_such_client", "Stor = None"])
def test_package_that_cannot_be_loaded_is_missing_dependency(offer: Offer, code: str) -> None:
    offer("fl_seven", code=code)
    with pytest.raises(MissingDependencyError, match="other:// is offered by 'fl_seven:Store', which cannot be loaded"):
        source_store("other://place")


def test_store_whose_client_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.SOURCES, "demo", "fencelock_no_such_module:Store")
    monkeypatch.setitem(registry.EXTRAS, "demo", "demo")
    with pytest.raises(
        MissingDependencyError,
        match=r"\(fencelock_no_such_module\): from a clone of fencelock, run pip install '\.\[demo\]'",
    ):
        source_store("demo://place")


def test_client_that_cannot_be_loaded_tells_its_own_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fl_no_library.py").write_text("raise ImportError('no wrapper.\\nlibpq library not found')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry.SOURCES, "demo", "fl_no_library:Store")
    monkeypatch.setitem(registry.EXTRAS, "demo", "demo")
    with pytest.raises(MissingDependencyError, match=r"\(no wrapper\. libpq library not found\): install") as caught:
        source_store("demo://place")
    assert "pip install" not in str(caught.value)


def test_error_inside_our_own_store_is_not_called_a_missing_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.SOURCES, "demo", "fencelock_no_such_module:Store")
    with pytest.raises(ModuleNotFoundError):
        source_store("demo://place")
