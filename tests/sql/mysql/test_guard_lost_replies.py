"""Exactly one request, or exactly one reply, of a guard's flow is lost: each in turn, of every flow, sync and async.

Whatever was lost: what is told as not done was not done, what is told as done was, and the next holder can seal and
write at once. Only the end of a user's block may be unknown, and what an operator asked for.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from fencelock import FencelockError, OutcomeUnknownError
from tests.guards import HandmadeLease
from tests.sql.mysql.guarded import Guarded, run
from tests.sql.mysql.proxy import MySQLProxy
from tests.sql.postgres.proxy import Fault
from tests.sql.postgres.test_guard_lost_replies import (
    MAX_LOST,
    REPEATED,
    Flow,
    Scene,
    close,
    first_block,
    later_block,
    raise_to,
    seal,
    seal_over_an_older_one,
)


class MySQLScene(Scene):
    """A guard whose requests may be lost."""

    def execute(self, native: Any, statement: str) -> None:
        if self.runner is None:
            run(native, statement)
        else:
            self.runner.run(_say(native, statement))


async def _say(native: Any, statement: str) -> None:
    async with native.cursor() as cursor:
        await cursor.execute(statement)


def is_protected(scene: Any) -> bool:
    return bool(scene.guarded.database.rows("SHOW TRIGGERS LIKE 'reports'"))


def unprotect(scene: Any) -> Iterator[bool]:
    yield False
    scene.guard.unprotect(reason="a test")
    yield not is_protected(scene)


def protect(scene: Any) -> Iterator[bool]:
    scene.guard.unprotect(reason="a test")
    yield False
    scene.guard.protect("reports")
    yield is_protected(scene)


FLOWS = [seal, seal_over_an_older_one, first_block, later_block, close, raise_to, unprotect, protect]


@pytest.fixture(params=["sync", "async"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as the_runner:
        yield the_runner


@pytest.mark.parametrize("lose", [MySQLProxy.drop_request, MySQLProxy.drop_reply], ids=["request", "reply"])
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
def test_one_loss_is_told_as_it_is_and_holds_nobody_up(
    guarded: Guarded,
    mysql_proxy: MySQLProxy,
    runner: asyncio.Runner | None,
    flow: Flow,
    lose: Callable[[MySQLProxy, int], Fault],
) -> None:
    for nth in range(1, MAX_LOST):
        scene: Any = MySQLScene(guarded, mysql_proxy, runner)
        acting = flow(scene)
        next(acting)
        fault = lose(mysql_proxy, nth)
        error: BaseException | None = None
        try:
            is_done = next(acting)
        except (FencelockError, pymysql.OperationalError) as caught:
            error, is_done = caught, False
        if error is None:
            assert is_done, f"the loss of {nth} was told as done"
        elif not isinstance(error, OutcomeUnknownError):
            assert getattr(error, "definite", True)
            assert guarded.value() != "done", f"the loss of {nth} was told as not done: {error}"
        assert not (flow in REPEATED and isinstance(error, OutcomeUnknownError))
        check_free(guarded)
        if not fault.has_happened:
            assert nth > 1
            return
    raise AssertionError(f"{flow.__name__} has more than {MAX_LOST} requests")


def check_free(guarded: Guarded) -> None:
    """Assert that the next holder is not held up, and make all as it was."""
    guard = guarded.guard()
    with guard.transaction(HandmadeLease(20)) as native:
        run(native, "UPDATE reports SET value = 'first'")
    guard.lower(1, reason="a test")
    guard.protect("reports")
