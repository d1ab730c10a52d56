"""The explorer finds shortest ways, and the model decides as the library does."""

from itertools import product

import pytest

from fencelock._flows import admit as library
from fencelock.errors import SealLostError, StaleTokenError, TokenCollisionError
from fencelock.model import Mark, Sequencer, digest_of_claim, one_way
from fencelock_lab.model import explorer, guard, world
from fencelock_lab.model.rules import Rules

# --- the model's decisions are the library's ------------------------------------------------------
LIBRARY_SAYS = {
    StaleTokenError: guard.ModelVerdict.STALE,
    TokenCollisionError: guard.ModelVerdict.COLLISION,
    SealLostError: guard.ModelVerdict.SEAL_LOST,
}


def sequencer(token: int, claim: str) -> Sequencer:
    return Sequencer("0" * 32, "1" * 16, "lock", token, one_way(claim))


def library_says(mark: world.ModelMark, token: int, claim: str, *, was_sealed: bool) -> guard.ModelVerdict:
    lease = sequencer(token, claim)
    history = lease.history_id if mark.claim else None
    digest = digest_of_claim(mark.claim) if mark.claim else None
    theirs = Mark("stock", "lock", mark.token, lease.source_id, history, digest, mark.is_closed)
    try:
        verdict = library.admit(theirs, lease, was_sealed=was_sealed)
    except tuple(LIBRARY_SAYS) as error:
        return LIBRARY_SAYS[type(error)]
    return guard.ModelVerdict.PASS if verdict is library.Verdict.PASS else guard.ModelVerdict.RAISE


def test_the_model_admits_whom_the_library_admits() -> None:
    claims = ("a" * 32, "b" * 32)
    marks = [
        world.ModelMark(),
        *(world.ModelMark(*fields) for fields in product((1, 2, 3), (None, *claims), (False, True))),
    ]
    verdicts = set()
    for mark, token, claim, was_sealed in product(marks, (1, 2, 3), claims, (False, True)):
        verdict = guard.admit(mark, token, claim, was_sealed=was_sealed, rules=Rules())
        assert verdict is library_says(mark, token, claim, was_sealed=was_sealed), (mark, token, claim, was_sealed)
        verdicts.add(verdict)
    assert verdicts == set(guard.ModelVerdict)


# --- the explorer -----------------------------------------------------------------------------------
def knight(square: tuple[int, int]) -> list[tuple[str, tuple[int, int]]]:
    column, row = square
    jumps = [(1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2)]
    reached = [(column + x, row + y) for x, y in jumps]
    return [(f"{x}{y}", (x, y)) for x, y in reached if 0 <= x < 8 and 0 <= y < 8]


def test_the_explorer_finds_a_shortest_trace() -> None:
    found = explorer.explore((0, 0), knight, lambda step: step == "77")
    assert found.trace is not None
    assert len(found.trace) == 6, "a knight crosses the board in six moves"
    assert found.trace[-1] == ("77", (7, 7))


def test_the_explorer_walks_through_everything() -> None:
    assert explorer.explore((0, 0), knight, lambda _: False) == (64, 336, None)


def test_the_explorer_gives_up_by_saying_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "MAX_STATES", 10)
    with pytest.raises(explorer.TooManyStatesError, match="more than 10 states"):
        explorer.explore(0, lambda number: [("next", number + 1)], lambda _: False)
