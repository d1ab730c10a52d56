"""The search for an order, compared with trying every order, and what it costs."""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelock_lab.campaigns.history import Operation
from fencelock_lab.campaigns.linearize import (
    FencedMutex,
    LinearizedCall,
    Model,
    Mutex,
    ReentrantMutex,
    Search,
    calls_of,
)

NEVER = 10**9
MODELS = (Mutex(), FencedMutex(), ReentrantMutex())


def call(number: int, process: str, token: int, invoked: int, returned: int, ends: int | None = None) -> LinearizedCall:
    """Return an acquire, or with `ends` None a release."""
    is_acquire = ends is not None
    operation = Operation(process, "acquire" if is_acquire else "release", "l", invoked, returned, "ok", token)
    return LinearizedCall(number, process, is_acquire, token, invoked, returned, ends or 0, operation)


def has_order(calls: Sequence[LinearizedCall], model: Model) -> bool:
    """Try every order, and give each call the earliest point that is left to it."""
    return any(_is_possible(order, model) for order in permutations(calls))


def _is_possible(order: Sequence[LinearizedCall], model: Model) -> bool:
    at, state = 0, ()
    for one in order:
        at = max(at, one.invoked_ns)
        after = model.step(state, one, at)
        if after is None and len(state) > 1:
            at = max(at, state[2])  # Later the lease before it may have ended.
            after = model.step(state, one, at)
        if after is None or at > one.returned_ns:
            return False
        state = after
    return True


@st.composite
def call_lists(draw: st.DrawFn) -> list[LinearizedCall]:
    """Draw up to six calls of three processes, close together, so that many overlap."""
    calls: list[LinearizedCall] = []
    for number in range(draw(st.integers(1, 6))):
        invoked = draw(st.integers(0, 8))
        returned = draw(st.integers(invoked, 9))
        ends = draw(st.none() | st.integers(0, 10))
        calls.append(call(number, draw(st.sampled_from("abc")), draw(st.integers(1, 4)), invoked, returned, ends))
    return calls


FEW = 80
many = pytest.param(1000, marks=pytest.mark.campaign)
"""Numbers of examples: each takes milliseconds, for all of its orders are tried."""


@pytest.mark.parametrize("examples", [FEW, many])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_the_search_finds_what_trying_every_order_finds(model: Model, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(calls=call_lists())
    def check(calls: list[LinearizedCall]) -> None:
        assert Search(calls, model, budget=10**6).run().is_linearizable == has_order(calls, model)

    check()


def _choices(calls: Sequence[LinearizedCall]) -> Iterator[tuple[LinearizedCall, ...]]:
    return chain.from_iterable(combinations(calls, size) for size in range(len(calls) + 1))


@pytest.mark.parametrize("examples", [FEW, many])
def test_an_acquire_of_unknown_outcome_changes_nothing(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(calls=call_lists(), lost=st.lists(st.integers(0, 8), min_size=1, max_size=2))
    def check(calls: list[LinearizedCall], lost: list[int]) -> None:
        calls = calls[:4]
        unknown = [call(10 + at, f"lost-{at}", 9, invoked, NEVER, NEVER) for at, invoked in enumerate(lost)]
        with_them = any(has_order([*calls, *some], Mutex()) for some in _choices(unknown))
        assert with_them == has_order(calls, Mutex())

    check()


def test_a_spent_budget_is_told() -> None:
    calls = [call(number, f"p{number}", number + 1, 0, 100, 1) for number in range(12)]
    assert Search(calls, Mutex(), budget=50).run().is_linearizable is None
    assert Search(calls, Mutex(), budget=10**7).run().is_linearizable is True


def test_the_culprit_and_the_holder_are_named() -> None:
    found = Search([call(0, "a", 5, 0, 1, 10), call(1, "b", 6, 2, 3, 20)], FencedMutex()).run()
    assert found.culprit is not None
    assert (found.culprit.process, found.holders) == ("b", (("a", 5),))


def test_a_lease_cannot_end_before_it_was_last_relied_on() -> None:
    granted = Operation("a", "acquire", "l", 0, 1, "ok", 5, until_ns=10)
    later = Operation("a", "read", "r", 8, 9, "ok", 5, until_ns=18)
    assert calls_of([granted, later])[0].ends_ns == 18
    released = Operation("a", "release", "l", 12, None, "info", 5)
    assert calls_of([granted, later, released])[0].ends_ns == 12
