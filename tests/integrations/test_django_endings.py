"""How blocks of Django end: in plain SQL, and with a reply lost at the end."""

import dataclasses
from contextlib import suppress
from pathlib import Path

import pytest
from django.db import Error, connection

from fencelock import BlockLostError, FencelockError, SourceUnavailableError
from fencelock._api.idle_limit import is_from_lost_block
from fencelock.integrations.django import fenced
from tests.integrations.databases import GuardedDatabase, open_guarded
from tests.integrations.djangos import connected_to
from tests.integrations.endings import WRITE, check_endings
from tests.integrations.proxies import proxy_before
from tests.support.guards import HandmadeLease

AFTER_LOSS = {
    "postgres": [("BlockLostError", "first"), ("OutcomeUnknownError", "2"), ("", "3")],
    "mysql": [("BlockLostError", "first"), ("OutcomeUnknownError", "2"), ("OutcomeUnknownError", "3")],
}
"""The error and the value after the loss of a reply: to the guard's question, to COMMIT, and to what Django sends after
it, which is SET autocommit on MySQL, and nothing on PostgreSQL.
"""


def execute(*statements: str) -> None:
    """Run statements, and swallow the errors of each."""
    for statement in statements:
        with suppress(Error), connection.cursor() as cursor:
            cursor.execute(statement)


def test_a_block_that_ends_well_is_committed(guarded: GuardedDatabase) -> None:
    lease, guard = HandmadeLease(5), guarded.guard()

    def block(*statements: str) -> None:
        with fenced(lease, guard=guard):
            execute(*statements)

    with connected_to(guarded):
        check_endings(guarded, block)
        execute(WRITE)
        assert guarded.value() == "first", "the lease is still presented on the connection"


@pytest.mark.server_wide
@pytest.mark.parametrize("kind", AFTER_LOSS)
def test_a_reply_lost_at_the_end_is_reported_correctly(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    lease = HandmadeLease(5)
    with open_guarded(kind, tmp_path, request.getfixturevalue) as guarded, proxy_before(guarded) as proxy:
        found = []
        with connected_to(dataclasses.replace(guarded, settings=guarded.settings | {"PORT": str(proxy.port)})):
            for nth in (1, 2, 3):
                told = ""
                try:
                    with fenced(lease, guard=guarded.guard()):
                        execute(WRITE.replace("new", str(nth)))
                        proxy.drop_reply(nth)
                except FencelockError as error:
                    told = type(error).__name__
                found.append((told, guarded.value()))
                assert lease.open_transactions == 0
        assert found == AFTER_LOSS[kind]


@pytest.mark.server_wide
@pytest.mark.parametrize("kind", AFTER_LOSS)
def test_g3_a_block_whose_session_the_server_ended_says_so(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By its error, or by a note on Django's."""

    def lose(guarded: GuardedDatabase, then: str | None) -> None:
        with fenced(HandmadeLease(5), guard=guarded.guard(), idle=77), connection.cursor() as cursor:
            cursor.execute(WRITE)
            guarded.end_other_sessions()
            if then is not None:
                cursor.execute(then)

    with open_guarded(kind, tmp_path, request.getfixturevalue) as guarded, connected_to(guarded):
        for then in (WRITE, None):
            with pytest.raises((BlockLostError, Error)) as caught:
                lose(guarded, then)
            told = "\n".join((str(caught.value), *getattr(caught.value, "__notes__", ())))
            assert "closed inside its block" in told
            assert "token 5 is still valid, for 30.0 s: only this block is gone" in told
            assert "might be idle for 77 s, its `idle`" in told
            assert is_from_lost_block(caught.value)
            assert guarded.value() == "first"


@pytest.mark.server_wide
@pytest.mark.parametrize("kind", AFTER_LOSS)
def test_a_block_that_finds_no_database_is_definite(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The tenure has sealed before, so that the guard's own client is not asked."""
    lease = HandmadeLease(5)
    with open_guarded(kind, tmp_path, request.getfixturevalue) as guarded:
        guard = guarded.guard()
        guard.seal(lease)
        with (
            connected_to(dataclasses.replace(guarded, settings=guarded.settings | {"PORT": "1"})),
            pytest.raises(SourceUnavailableError, match="the block has not begun"),
        ):
            fenced(lease, guard=guard).__enter__()
        assert lease.open_transactions == 0
