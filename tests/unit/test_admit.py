"""`admit`: one pure function decides, and the SQLite guard's one-statement check agrees with it."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fencelock import (
    GuardError,
    Mark,
    SealLostError,
    Sequencer,
    StaleTokenError,
    TokenCollisionError,
    WrongLockError,
)
from fencelock._flows.admit import Verdict, admit
from fencelock._flows.tenure import MAX_SEALS, Tenure
from fencelock.model import digest_of_claim, one_way
from fencelock.protocol.guard_requests import Begin, Commit, Open, RaiseMarks
from fencelock.stores.registry import guard_store
from tests.support.guards import LOCK, RESOURCE, make_file, sequencer, url_of

OWN = Mark(RESOURCE, LOCK, 5, "source", "history", sequencer(5).digest)


@pytest.mark.parametrize(
    ("mark", "was_sealed", "verdict"),
    [
        (Mark(RESOURCE, LOCK), False, Verdict.RAISE),
        (replace(OWN, token=4, digest=sequencer(4).digest), False, Verdict.RAISE),
        (replace(OWN, token=4, digest=None), False, Verdict.RAISE),
        (replace(OWN, token=4, is_closed=True), False, Verdict.RAISE),
        (replace(OWN, token=4, history_id="older"), False, Verdict.RAISE),
        (OWN, False, Verdict.PASS),
        (OWN, True, Verdict.PASS),
    ],
)
def test_g1_what_is_admitted(mark: Mark, was_sealed: bool, verdict: Verdict) -> None:
    assert admit(mark, sequencer(5), was_sealed=was_sealed) is verdict


@pytest.mark.parametrize(
    ("mark", "was_sealed", "error"),
    [
        (replace(OWN, token=6), False, StaleTokenError),
        (replace(OWN, token=6, digest=None), True, StaleTokenError),
        (replace(OWN, is_closed=True), False, StaleTokenError),
        (replace(OWN, digest=None), False, StaleTokenError),
        (replace(OWN, digest="another"), False, TokenCollisionError),
        (replace(OWN, history_id="another"), False, TokenCollisionError),
        (replace(OWN, digest="another", is_closed=True), False, TokenCollisionError),
        (replace(OWN, lock="another"), False, WrongLockError),
        (replace(OWN, source_id="another"), False, WrongLockError),
        (replace(OWN, source_id="another", token=99), False, WrongLockError),
        (replace(OWN, token=4), True, SealLostError),
        (Mark(RESOURCE, LOCK), True, SealLostError),
    ],
)
def test_g1_what_is_refused(mark: Mark, was_sealed: bool, error: type[GuardError]) -> None:
    with pytest.raises(error) as caught:
        admit(mark, sequencer(5), was_sealed=was_sealed)
    assert type(caught.value) is error
    assert RESOURCE in str(caught.value)
    assert sequencer(5).proof not in str(caught.value)


TEXTS = st.sampled_from(["a", "b"])
PROOFS = TEXTS.map(one_way)
SEQUENCERS = st.builds(Sequencer, source_id=TEXTS, history_id=TEXTS, lock=TEXTS, token=st.integers(1, 3), proof=PROOFS)
MARKS = st.builds(
    Mark,
    resource=st.just(RESOURCE),
    lock=TEXTS,
    token=st.integers(1, 3),
    source_id=st.one_of(st.none(), TEXTS),
    history_id=st.one_of(st.none(), TEXTS),
    digest=st.one_of(st.none(), PROOFS, PROOFS.map(one_way)),
    is_closed=st.booleans(),
)


def passes(mark: Mark, lease: Sequencer) -> bool:
    try:
        return admit(mark, lease, was_sealed=False) is Verdict.PASS
    except GuardError:
        return False


@given(mark=MARKS, lease=SEQUENCERS)
@example(mark=Mark(RESOURCE, "a", 1, None, "a", digest_of_claim("a")), lease=Sequencer("a", "a", "a", 1, one_way("a")))
@example(mark=Mark(RESOURCE, "a", 1, "a", "a", one_way("a")), lease=Sequencer("a", "a", "a", 1, one_way("a")))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_the_files_comparison_passes_what_admit_passes(tmp_path: Path, mark: Mark, lease: Sequencer) -> None:
    """Of two marks that no flow can write (without a source, but with a digest) the file refuses more."""
    file = tmp_path / "app.db"
    file.unlink(missing_ok=True)
    connection = guard_store(url_of(make_file(file, journal="delete"))).connect()
    connection.perform(Begin())
    connection.marks.write(mark)
    connection.database.commit()
    not_ours = connection.perform(Open((RESOURCE,), lease))
    connection.close()
    is_possible = (mark.source_id is None) <= (mark.digest is None)
    assert (not_ours == ()) == (passes(mark, lease) and is_possible)


OTHERS = (
    *(replace(OWN, token=token) for token in (4, 6)),
    *(replace(OWN, **{field: text}) for field in ("lock", "source_id", "history_id", "digest") for text in ("a", "z")),
    replace(OWN, lock=LOCK, digest=None),
    replace(OWN, is_closed=True),
)


def test_the_file_compares_every_field_of_a_mark(tmp_path: Path) -> None:
    """Marks that differ in one field, on both sides of it: none of them is the lease's."""
    for number, mark in enumerate((OWN, *OTHERS)):
        connection = guard_store(url_of(make_file(tmp_path / f"{number}.db"))).connect()
        connection.perform(Begin())
        connection.marks.write(mark)
        connection.perform(Commit())
        assert connection.perform(Open((RESOURCE,), sequencer(5))) == (() if mark is OWN else (RESOURCE,)), mark
        connection.close()


def test_g8_the_file_refuses_a_mark_that_no_flow_writes(tmp_path: Path) -> None:
    connection = guard_store(url_of(make_file(tmp_path / "app.db"))).connect()
    for lease, is_fine in ((sequencer(5), True), (sequencer(4), False)):
        connection.perform(Begin())
        with nullcontext() if is_fine else pytest.raises(GuardError, match="a mark only goes up"):
            connection.perform(RaiseMarks((RESOURCE,), lease))
            connection.perform(Commit())
    connection.close()


# --- what a tenure remembers ---
KEYS = (("place", "one"), ("place", "two"))


def test_g2_nothing_new_is_opened_after_the_first_read() -> None:
    tenure = Tenure()
    tenure.check_may_open(KEYS, is_independent=False)
    tenure.remember(KEYS, KEYS)
    tenure.has_read = True
    tenure.check_may_open(KEYS, is_independent=False)
    late = (("elsewhere", "one"),)
    with pytest.raises(GuardError, match="'one' would be sealed after"):
        tenure.check_may_open(late, is_independent=False)
    tenure.check_may_open(late, is_independent=True)


def test_a_tenure_seals_a_bounded_number_of_resources() -> None:
    tenure = Tenure()
    keys = tuple(("place", str(number)) for number in range(MAX_SEALS))
    tenure.remember(keys, keys)
    tenure.check_may_open(keys, is_independent=False)
    with pytest.raises(GuardError, match=f"{MAX_SEALS} resources at most"):
        tenure.check_may_open((("place", "one more"),), is_independent=False)
