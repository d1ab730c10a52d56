"""Every public class has an async twin with the same names: what reads for one reads for both."""

import inspect
from types import SimpleNamespace

import pytest

import fencelock
import fencelock.aio

CLASSES = ("Source", "Lock", "RLock", "Lease", "Guard", "GuardedTransaction", "Admission", "Lost", "Term")
TWIN_PREFIX = "Async"
FUNCTIONS = ("connect", "guard")

WITHOUT_IO = {
    "Guard": {"check", "for_resource", "rebuilding", "transaction"},
    "Lease": {"cancel_on_lost", "check_valid", "enter_guarded", "leave_guarded", "leave_inner_block", "release_soon"}
    | {"remaining"},
    "Lock": {"guarded", "leased"},
    "Lost": {"is_set"},
    "RLock": {"guarded", "leased"},
    "Source": {"lead", "lock", "rlock"},
}
"""The methods of async classes that ask nothing of a store by themselves; what some return is awaited, or entered."""

ASYNC_ONLY = {"Lease": {"cancel_on_lost", "without_own_cancellation"}}
"""What only a task can be asked for."""

_PROTOCOL = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def members(owner: object) -> dict[str, str]:
    """Return the public members of a class, each with its parameters, or as an attribute."""
    found = {}
    for name, member in inspect.getmembers(owner):
        if not name.startswith("_") or name in {*_PROTOCOL, *_PROTOCOL.values()}:
            found[_PROTOCOL.get(name, name)] = _shape(member)
    return found


def _shape(member: object) -> str:
    """Return the parameters of a callable, without their types and without what it returns."""
    if not callable(member):
        return "attribute"
    signature = inspect.signature(member)
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def differences(sync: object, twin: object, async_only: set[str]) -> list[str]:
    """Return one line for each member that the two do not have alike."""
    ours, theirs = members(sync), members(twin)
    return [
        f"{name}: sync {ours.get(name)}, async {theirs.get(name)}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name) and not (name in async_only and name not in ours)
    ]


@pytest.mark.reduced
@pytest.mark.parametrize("name", CLASSES)
def test_twins_have_equal_members(name: str) -> None:
    sync, twin = getattr(fencelock, name), getattr(fencelock.aio, TWIN_PREFIX + name)
    assert sync is not twin
    assert {"__enter__", "acquire", "release", "transaction", "is_set"} & members(sync).keys()
    assert differences(sync, twin, ASYNC_ONLY.get(name, set())) == []


@pytest.mark.parametrize("name", CLASSES)
def test_what_asks_a_store_is_awaited(name: str) -> None:
    twin = getattr(fencelock.aio, TWIN_PREFIX + name)
    methods = {one: member for one, member in inspect.getmembers(twin, callable) if not one.startswith("_")}
    awaited = {
        one
        for one, member in methods.items()
        if inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
    }
    assert methods.keys() - awaited == WITHOUT_IO.get(name, set())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_twin_functions_have_equal_parameters(name: str) -> None:
    assert _shape(getattr(fencelock, name)) == _shape(getattr(fencelock.aio, name))


class _Sync:
    held = False

    def acquire(self, timeout: float = -1) -> bool: ...

    def __enter__(self) -> None: ...


class _Twin:
    held = True

    async def acquire(self, timeout: float = -1) -> int: ...

    async def __aenter__(self) -> None: ...


def test_types_and_async_make_no_difference() -> None:
    assert differences(_Sync, _Twin, set()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"acquire": lambda self, timeout=None: None},
        {"acquire": lambda self, *, timeout=-1: None},
        {"acquire": lambda self, limit=-1: None},
        {"extra": lambda self: None},
        {"held": lambda self: None},
    ],
)
def test_a_difference_is_reported(change: dict[str, object]) -> None:
    (name,) = change
    changed = SimpleNamespace(**{**vars(_Twin), **change})
    assert [line.split(":")[0] for line in differences(_Sync, changed, set())] == [name]


def test_what_only_the_twin_may_have_is_not_reported_there() -> None:
    changed = type("Twin", (_Twin,), {"cancel_on_lost": lambda self: None})
    assert differences(_Sync, changed, {"cancel_on_lost"}) == []
    assert differences(changed, _Sync, {"cancel_on_lost"}) != []
