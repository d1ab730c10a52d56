"""G12 on both SQL servers: nobody but the schema's owner seals, presents or closes without a right, and what a forger
did can be undone. What each server alone has is in the folder of its name.
"""

import asyncio
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import (
    ConfigError,
    Event,
    Guard,
    GuardError,
    Hooks,
    ImplausibleTokenError,
    RightError,
    UnfencedWriteError,
    inspect_resources,
)
from fencelock.model import MAX_TOKEN, PLAUSIBLE_GAIN, token_ceiling
from fencelock.protocol.guard_requests import Right
from tests.sql.dialect import MakeRole, run
from tests.sql.guarded import FORGED, Guarded, Step, write
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource, sequencer
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide


def test_g12_a_right_to_one_resource_is_none_to_another(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role)
    with guarded.guard(user=role).transaction(HandmadeLease(5)) as native:
        write(native)
    guarded.guard(user=role).close(HandmadeLease(5))
    for resources in (("orders",), ("reports", "orders")):
        with pytest.raises(RightError, match=guarded.sql.refused_resource.format("orders")):
            guarded.guard(*resources, user=role).seal(HandmadeLease(6))
    assert "orders" not in {mark.resource for mark in inspect_resources(guarded.database.url()).marks}


def test_a_hook_is_told_once_of_each_refusal_of_a_role_without_a_right(guarded: Guarded, role: str) -> None:
    """By every way to a refusal: a seal, a block, a close, and a check that was passed before the right was taken."""
    told: list[Event] = []
    owner, lease, url = guarded.guard(), HandmadeLease(5), guarded.database.url(user=role)
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK, hooks=Hooks(on_refused=told.append))
    guard_async = fencelock.aio.guard(url, resource=RESOURCE, lock=LOCK, hooks=Hooks(on_refused=told.append))

    async def write_async() -> None:
        async with guard_async.transaction(lease):
            pass

    ways = (
        lambda: guard.seal(lease),
        lambda: write_in(guard, lease),
        lambda: guard.close(lease),
        lambda: asyncio.run(guard_async.seal(lease)),
        lambda: asyncio.run(write_async()),
        lambda: asyncio.run(guard_async.close(lease)),
    )
    refused = Event("refused", LOCK, 5, RESOURCE, reason="missing-right")
    for way in ways:
        with pytest.raises(RightError):
            way()
        assert told == [refused]
        told.clear()
    owner.grant(role)
    guard.seal(lease)
    with guarded.client(user=role) as native:
        run(native, "BEGIN")
        admission = guard.check(lease, connection=native)
        owner.revoke(role, reason="a test")
        with pytest.raises(RightError), admission:
            pass
    assert told == [refused]


def write_in(guard: Guard, lease: HandmadeLease) -> None:
    with guard.transaction(lease) as native:
        write(native)


def test_g12_a_right_to_a_prefix_is_one_to_each_resource_with_it(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role, resource="order:*")
    for allowed in ("order:1", "order:", "order:*"):
        guarded.guard(allowed, user=role).seal(HandmadeLease(5))
    for other in ("order", "orders:1", "xorder:1", RESOURCE):
        with pytest.raises(RightError):
            guarded.guard(other, user=role).seal(HandmadeLease(5))


def test_g12_a_right_to_a_prefix_is_given_by_saying_so_alone(guarded: Guarded, role: str) -> None:
    """Not by a guard of a resource whose own name is read as one, perhaps made from what a user typed."""
    guard = guarded.guard("order:7*")
    with pytest.raises(ConfigError, match=r"'order:7\*' is one to every resource .* begins with 'order:7'"):
        guard.grant(role)
    with pytest.raises(RightError):
        guarded.guard("order:77", user=role).seal(HandmadeLease(5))
    guard.grant(role, resource="order:7*")
    guarded.guard("order:77", user=role).seal(HandmadeLease(5))


def test_g12_a_seal_that_waits_for_the_mark_is_refused_when_its_right_is_taken(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role)
    with guarded.database.connect(user=role) as forger:
        guarded.sealed(5)
        with guarded.database.connect() as holder:
            run(holder, "START TRANSACTION")
            guarded.present(holder, 5)
            seal = Step(run, forger, f"{guarded.sql.call}seal(%s, 'reports')", str(sequencer(FORGED)))
            guarded.wait_for_lock(forger)
            assert guarded.guard().revoke(role, reason="a test") == (Right(RESOURCE, role),)
            run(holder, guarded.sql.commit_presented)
        with pytest.raises(guarded.sql.client_error) as caught:
            seal.end()
        assert guarded.sql.code_of(caught.value) == "FL014"
    assert guarded.guard().mark().token == 5


def test_revoking_takes_each_right_that_covers_the_resource_and_leaves_the_others(guarded: Guarded, role: str) -> None:
    guard = guarded.guard()
    for resource in (RESOURCE, "rep*", "*", "orders", "reports:*"):
        guard.grant(role, resource=resource)
    assert set(guard.revoke(role, reason="a test")) == {Right(each, role) for each in (RESOURCE, "rep*", "*")}
    assert guard.revoke(role, resource="reports:*", reason="a test") == (Right("reports:*", role),)
    assert inspect_resources(guarded.database.url()).rights == (Right("orders", role),)
    actions = guarded.database.rows(f"SELECT action FROM {guarded.sql.prefix}guard_audit ORDER BY id")
    assert [action for (action,) in actions] == ["grant"] * 5 + ["revoke"] * 2


def test_a_right_for_a_role_that_does_not_exist_is_refused(guarded: Guarded, role: str) -> None:
    """A wrong name would let nobody write, and whoever gets that name later."""
    for wrong in (f"{role}x", f"x{role}", role.upper(), f"x{role}@%", ""):
        with pytest.raises((GuardError, ConfigError), match=r"there is no (role|account)|must not be empty"):
            guarded.guard().grant(wrong)
    assert inspect_resources(guarded.database.url()).rights == ()


def test_rights_are_shown_for_the_resource_that_they_cover(guarded: Guarded, role: str) -> None:
    for resource in (RESOURCE, "rep*", "orders"):
        guarded.guard().grant(role, resource=resource)
    shown = inspect_resources(guarded.database.url(user=role), RESOURCE).rights
    assert shown == (Right("rep*", role), Right(RESOURCE, role))


# --- the cure of a poisoned mark ------------------------------------------------------------------
def test_g12_a_poisoned_mark_is_cured_while_the_forger_goes_on(guarded: Guarded, role: str) -> None:
    """The source of the mark is poisoned too, and two sessions of the forger seal for as long as they live."""
    guarded.guard().grant(role)
    database, poisoned = guarded.database, sequencer(FORGED, source_id="elsewhere")
    with database.connect(user=role) as first, database.connect(user=role) as second:
        steps = [Step(guarded.forge_on, each, poisoned) for each in (first, second)]
        wait_until(lambda: guarded.guard().mark().token >= FORGED)
        cured = guarded.guard().unpoison(role, source=HandmadeSource(7), reason="a forger")
        for step in steps:
            step.end()
    assert cured.rights == (Right(RESOURCE, role),)
    assert cured.sessions == 2
    mark = guarded.guard().mark()
    assert (mark.token, mark.digest, mark.source_id) == (7, None, "source")
    with pytest.raises(RightError):
        guarded.guard(user=role).seal(HandmadeLease(FORGED))
    with guarded.guard().transaction(HandmadeLease(8)) as native:
        write(native, "by the next holder")
    assert guarded.value() == "by the next holder"


def test_ending_sessions_spares_others(guarded: Guarded, make_role: MakeRole) -> None:
    one, other = make_role(), make_role()
    with guarded.database.connect(user=one) as ended, guarded.database.connect(user=other) as spared:
        assert guarded.guard().unpoison(one, source=HandmadeSource(0), reason="a test").sessions == 1
        run(spared, "SELECT 1")
        with pytest.raises(guarded.sql.lost_connection):
            run(ended, "SELECT 1")


# --- the ceiling ----------------------------------------------------------------------------------
@pytest.mark.parametrize("token", [MAX_TOKEN, 1_780_000_000 * 10**9])
def test_g12_a_token_that_no_source_can_have_issued_is_refused_in_sql(guarded: Guarded, token: int) -> None:
    guarded.sealed(5)
    with (
        guarded.database.connect() as native,
        pytest.raises(guarded.sql.client_error, match=guarded.sql.implausible) as caught,
    ):
        run(native, f"{guarded.sql.call}seal(%s, 'reports')", str(sequencer(token)))
    assert guarded.sql.code_of(caught.value) == "FL012"
    with pytest.raises(ImplausibleTokenError) as refused:
        guarded.guard().seal(HandmadeLease(token))
    assert (refused.value.token, refused.value.resource) == (token, RESOURCE)
    now_s = float(guarded.database.value(guarded.sql.clock_s))
    assert abs(refused.value.ceiling - token_ceiling(now_s, 0)) < 60 * 2**30
    assert guarded.guard().mark().token == 5


def test_g12_the_ceiling_is_never_lower_than_a_gain_above_the_mark(guarded: Guarded) -> None:
    """Also where the guard's clock is behind: the mark here is far above what the clock gives."""
    guard, high = guarded.guard(), 2**60
    with pytest.raises(ImplausibleTokenError):
        guard.raise_to(high, reason="a test")
    guard.raise_to(high, reason="restored under a wrong clock", implausible=True)
    with pytest.raises(ImplausibleTokenError) as refused:
        guard.seal(HandmadeLease(high + PLAUSIBLE_GAIN + 1))
    assert refused.value.ceiling == high + PLAUSIBLE_GAIN
    guard.seal(HandmadeLease(high + PLAUSIBLE_GAIN))
    guard.lower(7, reason="a test")
    guard.seal(HandmadeLease(8))


def test_an_unprotected_role_writes_no_table_by_a_right_to_another(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role, resource="orders")
    guard = guarded.guard("orders", user=role)
    with pytest.raises(UnfencedWriteError), guard.transaction(HandmadeLease(5)) as native:
        write(native)


def test_a_role_without_a_right_may_look(guarded: Guarded, role: str) -> None:
    guarded.sealed(5)
    seen: Any = inspect_resources(guarded.database.url(user=role))
    assert [mark.token for mark in seen.marks] == [5]


# --- the form -------------------------------------------------------------------------------------
def test_a_sequencer_has_one_spelling_in_sql(guarded: Guarded) -> None:
    """The last character of base64url has bits that mean nothing: a second spelling would decode to the same lock."""
    parts = str(sequencer(5)).split(".")
    assert (parts[7], len(parts[7]) % 4) != ("", 0), "the name of the lock leaves such bits"
    parts[7] = parts[7][:-1] + chr(ord(parts[7][-1]) + 1)
    with guarded.database.connect() as native:
        for routine in ("seal", "present"):
            with pytest.raises(guarded.sql.client_error, match="not written as base64url") as caught:
                run(native, f"{guarded.sql.call}{routine}(%s, 'reports')", ".".join(parts))
            assert guarded.sql.code_of(caught.value) == guarded.sql.no_sequencer
