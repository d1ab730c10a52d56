"""Requests and replies that are lost on the way to DynamoDB: nobody holds a lock twice, and no lock stays taken."""

import asyncio

import pytest

import fencelock
import fencelock.aio
from tests.dynamodb.fix_source import Locks
from tests.http.http_proxy import HTTPProxy
from tests.support.helpers import DEADLINE_S

TTL = 30.0
REQUESTS = 9
"""More than an acquire and a release of a new lock send."""


def behind(locks: Locks, proxy: HTTPProxy) -> str:
    return locks.url.replace(f":{locks.server.port}", f":{proxy.port}")


@pytest.mark.parametrize("nth", range(1, REQUESTS + 1))
@pytest.mark.parametrize("fault", ["drop_reply", "drop_request"])
def test_a_lost_message_costs_no_lease_and_leaves_no_lock(
    locks: Locks, ministack_proxy: HTTPProxy, fault: str, nth: int
) -> None:
    getattr(ministack_proxy, fault)(nth)
    with (
        fencelock.connect(behind(locks, ministack_proxy)) as source,
        source.lock("a", ttl=TTL, timeout=DEADLINE_S) as lease,
    ):
        token = lease.token
    ministack_proxy.forget_faults()
    with fencelock.connect(locks.url) as source, source.lock("a", ttl=TTL, timeout=DEADLINE_S) as lease:
        assert lease.token > token


@pytest.mark.parametrize("nth", [*range(1, 4), *(pytest.param(nth, marks=pytest.mark.campaign) for nth in range(4, 9))])
def test_a_task_survives_a_lost_reply(locks: Locks, ministack_proxy: HTTPProxy, nth: int) -> None:
    async def use() -> int:
        async with (
            fencelock.aio.connect(behind(locks, ministack_proxy)) as source,
            source.lock("a", ttl=TTL, timeout=DEADLINE_S) as lease,
        ):
            return lease.token

    ministack_proxy.drop_reply(nth)
    token = asyncio.run(use())
    ministack_proxy.forget_faults()
    with fencelock.connect(locks.url) as source, source.lock("a", ttl=TTL, timeout=DEADLINE_S) as lease:
        assert lease.token > token
