"""Calls with wrong arguments are told what to write instead, also with the words of other lock libraries."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock._api.advice import CONNECT_WORDS, GUARD_WORDS, LEAD_WORDS, LOCK_WORDS, advised
from fencelock._api.missing_names import METHODS

MODULES: Any = (fencelock, fencelock.aio)
URL = "memory://advice"
HANDLES = {"source": "Source", "lock": "Lock", "guard": "Guard"}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", ["lock", "rlock", "Acquire", "release", "transaction"])
def test_a_method_asked_of_the_module_is_told_how_to_get_its_handle(module: Any, name: str) -> None:
    told = rf"no attribute '{name}': write (\w+) = {module.__name__}\..*, then \1\.{name.lower()}\("
    with pytest.raises(AttributeError, match=told):
        getattr(module, name)


@pytest.mark.parametrize("module", MODULES)
def test_an_unknown_name_of_a_module_is_plainly_unknown(module: Any) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = module.nothing


def test_each_method_that_is_told_exists() -> None:
    for method, (handle, _) in METHODS.items():
        assert callable(getattr(getattr(fencelock, HANDLES[handle]), method))


@pytest.mark.parametrize("arguments", [("x",), (object(), "x"), ()])
@pytest.mark.parametrize("kind", [fencelock.Lock, fencelock.RLock, fencelock.aio.AsyncLock, fencelock.aio.AsyncRLock])
def test_a_lock_made_by_its_class_is_told_to_connect_first(kind: Any, arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError, match=r"write source = fencelock\.connect\(URL\).* then source\.lock\(name\)"):
        kind(*arguments)
    with pytest.raises(TypeError, match=r"no argument 'ttl': write source = fencelock\.connect\(URL\)"):
        kind(*arguments, ttl=5)


@pytest.mark.parametrize(
    ("kind", "maker"),
    [
        (fencelock.Source, "connect"),
        (fencelock.aio.AsyncSource, "connect"),
        (fencelock.Guard, "guard"),
        (fencelock.aio.AsyncGuard, "guard"),
    ],
)
def test_a_source_or_guard_made_by_its_class_is_told_the_function(kind: Any, maker: str) -> None:
    with pytest.raises(TypeError, match=rf"write fencelock\.{maker}\(URL"):
        kind(URL)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("method", "word", "advice"),
    [
        ("lock", "expire", "write ttl="),
        ("rlock", "expire", "write ttl="),
        ("lead", "expire", "write ttl="),
        ("lock", "blocking", "acquire(blocking=False)"),
        ("lock", "blocking_timeout", "write timeout="),
        ("lead", "blocking_timeout", "until stop= is set"),
        ("lead", "timeout", "until stop= is set"),
        ("lock", "auto_renewal", "leave it out"),
        ("lock", "check_interval", "leave it out"),
        ("lock", "tll", "write lock(name, ttl=…, timeout=…, on_lost=…, holder=…)"),
    ],
)
def test_a_keyword_that_a_lock_does_not_take_is_told_what_to_write(
    module: Any, method: str, word: str, advice: str
) -> None:
    make: Callable[..., object] = getattr(module.connect(URL), method)
    with pytest.raises(TypeError) as raised:
        make("q", **{word: 5})
    assert f"{method}() has no argument {word!r}: " in str(raised.value)
    assert advice in str(raised.value)


@pytest.mark.parametrize("module", MODULES)
def test_an_argument_without_its_name_is_told_the_names(module: Any) -> None:
    with pytest.raises(TypeError, match=r"3 were given: write lock\(name, ttl=…, timeout=…"):
        module.connect(URL).lock("q", 10)
    with pytest.raises(TypeError, match=r"2 were given: write guard\(url, resource=…"):
        module.guard("sqlite:///x.db", "reports")


@pytest.mark.parametrize("module", MODULES)
def test_what_belongs_elsewhere_is_told_where(module: Any) -> None:
    with pytest.raises(TypeError, match=r"no argument 'ttl': it belongs to each lock: source\.lock\(name, ttl=…"):
        module.connect(URL, ttl=3)
    with pytest.raises(TypeError, match="no argument 'host': it is a part of the URL"):
        module.connect(host="db1")
    with pytest.raises(TypeError, match=r"no argument 'table': .*guard\.protect\(table\)"):
        module.guard("sqlite:///x.db", table="report")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (fencelock.connect, CONNECT_WORDS),
        (fencelock.guard, GUARD_WORDS),
        (fencelock.Source.lock, LOCK_WORDS),
        (fencelock.Source.rlock, LOCK_WORDS),
        (fencelock.Source.lead, LEAD_WORDS),
    ],
)
def test_no_word_that_is_told_is_a_parameter(function: Callable[..., object], words: dict[str, str]) -> None:
    assert not words.keys() & inspect.signature(function).parameters.keys()


def test_a_type_error_of_the_function_itself_passes_as_it_is() -> None:
    own = TypeError("its own")

    @advised({})
    def fails() -> None:
        raise own

    with pytest.raises(TypeError) as raised:
        fails()
    assert raised.value is own
