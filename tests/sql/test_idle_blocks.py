"""A guarded block that is idle for longer than it may while its lease is renewed: what is said of it, and `idle`."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fencelock import BlockLostError, ConfigError, LeaseLostError
from fencelock._api.idle_limit import MAX_IDLE_S, is_from_lost_block
from tests.sql.dialect import run, run_async
from tests.sql.guarded import BriefLease, Guarded, in_block, write
from tests.support.guards import HandmadeLease
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide

BRIEF_S = 1.0
"""What servers that count in whole seconds can have, and a busy machine takes for no statement."""
STILL_VALID = r"token 5 is still valid, for 30\.0 s: only this block is gone"


class RenewedLease(BriefLease):
    """A lease that has little time left when the block begins, and is renewed inside it."""

    left_s = BRIEF_S

    def remaining(self) -> float:
        return self.left_s


def fail(_: Any) -> None:
    raise ZeroDivisionError


def fail_once_it_is_cut_off(native: Any) -> None:
    wait_until(native.is_cut_off)  # The server forgets a session before it closes the connection.
    raise ZeroDivisionError


def note_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


def idle_in_block(guarded: Guarded, then: Callable[[Any], Any], lease: Any, **options: Any) -> Any:
    """Be idle in a block until the server ends it, then go on."""
    with guarded.guard().transaction(lease, **options) as native:
        write(native)
        lease.left_s = 30.0
        guarded.wait_for_end(native)
        return then(native)


# --- G3: what is told -----------------------------------------------------------------------------
def test_g3_a_block_that_the_server_ended_says_that_its_lease_is_valid(guarded: Guarded) -> None:
    with pytest.raises(BlockLostError, match="idle for longer than it may") as caught:
        idle_in_block(guarded, lambda native: run(native, "SELECT 1"), RenewedLease(5))
    assert caught.match(STILL_VALID)
    assert caught.match(r"might be idle for 1 s, what its lease had left when it began")
    assert caught.match("Compute before the block, ask for a longer ttl, .* `idle=` seconds, 600 at most")
    assert caught.value.definite
    assert guarded.value() == "first"


def test_g3_a_block_that_ends_well_after_the_server_ended_it_says_the_same(guarded: Guarded) -> None:
    with pytest.raises(BlockLostError, match=STILL_VALID):
        idle_in_block(guarded, lambda native: None, RenewedLease(5))
    assert guarded.value() == "first"


def test_g3_an_error_of_ones_own_after_that_stays_and_has_a_note(guarded: Guarded) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        idle_in_block(guarded, fail_once_it_is_cut_off, RenewedLease(5))
    assert is_from_lost_block(caught.value)
    assert "closed inside its block" in note_of(caught.value)
    assert "token 5 is still valid, for 30.0 s" in note_of(caught.value)


def test_g3_an_error_of_ones_own_in_a_block_that_lives_has_no_note(guarded: Guarded) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        in_block(guarded, fail)
    assert not is_from_lost_block(caught.value)
    assert note_of(caught.value) == ""


def test_g3_a_block_whose_lease_is_over_too_says_why(guarded: Guarded) -> None:
    lease = RenewedLease(5)

    def lose(_: Any) -> None:
        lease.problem = LeaseLostError("the lease was lost: somebody broke it", reason="broken")

    with pytest.raises(BlockLostError, match="The lease is over too: the lease was lost: somebody broke it"):
        idle_in_block(guarded, lose, lease)


def test_g3_in_asyncio_it_says_the_same(guarded: Guarded) -> None:
    async def work(then: str | None) -> None:
        lease = RenewedLease(5)
        async with guarded.async_guard().transaction(lease) as native:
            await run_async(native, "UPDATE reports SET value = 'mine'")
            lease.left_s = 30.0
            number = guarded.sql.number_of(native)
            await asyncio.to_thread(guarded.sql.wait_for_end, guarded.database, number)
            if then is not None:
                await run_async(native, then)

    for then in (None, "SELECT 1"):
        with pytest.raises(BlockLostError, match=STILL_VALID):
            asyncio.run(work(then))
    assert guarded.value() == "first"


@pytest.mark.parametrize("is_idle", [True, False])
def test_g3_a_block_on_ones_own_connection_says_the_same(guarded: Guarded, is_idle: bool) -> None:
    """By its error, or by a note on the driver's."""
    lease: Any = RenewedLease(5) if is_idle else HandmadeLease(5)
    guarded.guard().seal(lease)
    with guarded.client() as own, pytest.raises((BlockLostError, guarded.sql.client_error)) as caught:
        lose_in_check(guarded, own, lease, is_idle)
    told = "\n".join((str(caught.value), note_of(caught.value)))
    assert "idle for longer than it may" in told
    assert "token 5 is still valid, for 30.0 s: only this block is gone" in told
    assert is_from_lost_block(caught.value)
    assert guarded.value() == "first"


def lose_in_check(guarded: Guarded, own: Any, lease: Any, is_idle: bool) -> None:
    """Write in a block on one's own connection, lose it, and write again."""
    run(own, "BEGIN")
    with guarded.guard().check(lease, connection=own):
        write(own)
        lease.left_s = 30.0
        (guarded.wait_for_end if is_idle else guarded.kill)(own)
        write(own, "late")


# --- G3: the caller's own limit -------------------------------------------------------------------
def test_g3_idle_is_the_limit_in_place_of_the_leases_time_left(guarded: Guarded) -> None:
    """A lease with 30 s left, and a block that may be idle for less."""
    with pytest.raises(BlockLostError, match=r"might be idle for 1 s, its `idle`"):
        idle_in_block(guarded, lambda native: None, HandmadeLease(5), idle=BRIEF_S)


def test_g3_idle_lets_a_block_be_idle_for_longer_than_its_lease_has_left(guarded: Guarded) -> None:
    with guarded.guard().transaction(BriefLease(5), idle=77) as native:
        write(native)
        assert guarded.sql.idle_limit_s(native) == 77
    assert guarded.value() == "mine"

    async def work() -> float:
        async with guarded.async_guard().transaction(BriefLease(5), idle=78) as native:
            rows = await run_async(native, guarded.sql.idle_limit)
            return float(rows[0][0])

    assert asyncio.run(work()) == 78


@pytest.mark.parametrize("idle", [0, -1, MAX_IDLE_S + 1, float("nan"), True, "60"])
def test_an_idle_outside_its_bounds_is_refused(guarded: Guarded, idle: Any) -> None:
    for guard in (guarded.guard(), guarded.async_guard()):
        with pytest.raises(ConfigError, match="idle is a number of seconds above 0, 600 at most"):
            guard.transaction(HandmadeLease(5), idle=idle)
