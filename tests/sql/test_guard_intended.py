"""A set-up that follows the pages has no finding: resources that are meant to protect no table, and rights in use."""

import pytest

from fencelock.stores.registry import guard_store
from tests.sql.guarded import Guarded
from tests.support.guards import HandmadeLease

pytestmark = pytest.mark.server_wide
NIGHT = "2026-11-22"


def found(guarded: Guarded, user: str | None = None) -> list[tuple[str, str | None]]:
    """Return the findings about resources without tables, as the owner or as another role sees them."""
    url = guarded.database.url() if user is None else guarded.database.url(user=user)
    looked = guard_store(url).examine()
    return [(one.code, one.resource) for one in looked if one.code in {"idle-right", "unprotected", "guard-refused"}]


def test_a_right_that_is_yet_to_be_used_is_no_reason_to_revoke_it(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role, resource="report")
    (right,) = [one for one in guard_store(guarded.database.url()).examine() if one.code == "idle-right"]
    assert "if a program is yet to use it, leave it" in right.remedy
    assert f"--resource report --role {role}" in right.remedy
    guarded.guard("report").seal(HandmadeLease(5))
    assert found(guarded) == [("unprotected", "report")]


def test_a_resource_that_keeps_keys_is_meant_to_protect_no_table(guarded: Guarded, role: str) -> None:
    """As `fencelock run report --once KEY --guard URL` has it."""
    guarded.guard().grant(role, resource="report")
    with guarded.guard("report", user=role).transaction(HandmadeLease(5), once=NIGHT):
        pass
    assert found(guarded) == []
    assert found(guarded, role) == []


def test_resources_behind_a_granted_prefix_are_meant_to_protect_no_table(guarded: Guarded, role: str) -> None:
    """As the page about a lock for each entity has it."""
    guarded.guard().grant(role, resource="order:*")
    for number in (42, 43):
        guarded.guard(f"order:{number}", user=role).seal(HandmadeLease(5))
    assert found(guarded) == []
    assert found(guarded, role) == []


def test_a_right_to_everything_hides_no_forgotten_table(guarded: Guarded, role: str) -> None:
    guarded.guard().grant(role, resource="*")
    guarded.guard("forgotten").seal(HandmadeLease(5))
    assert found(guarded) == [("unprotected", "forgotten")]
    assert found(guarded, role) == [("unprotected", "forgotten")]
