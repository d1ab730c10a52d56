"""The page's consumer of RabbitMQ: a frozen one, whose connection the broker closes, and a stale planner's message."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import fencelock
from fencelock.messages import from_headers, to_headers
from fencelock_lab.servers.rabbitmq import RabbitFleet
from tests.integrations.purchases import Purchases
from tests.support.helpers import wait_until

DECLARE = "import pika, rabbit; rabbit.declare(pika.BlockingConnection(pika.URLParameters({!r})).channel())"
HEARTBEAT = "?heartbeat=3"
"""Seconds, after two or three of which the broker gives up a client that says nothing."""


@pytest.fixture
def purchases(tmp_path: Path) -> Iterator[Purchases]:
    with closing(Purchases(tmp_path)) as purchases:
        yield purchases


def waiting(channel: BlockingChannel, queue: str) -> int:
    """Return how many messages a queue has for the next consumer."""
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def test_the_header_passes_through_the_wire_form_of_amqp(source: fencelock.Source) -> None:
    with source.lock("planner") as lease:
        written = pika.BasicProperties(headers=to_headers(lease))
        read = pika.BasicProperties()
        read.decode(b"".join(written.encode()))
        assert from_headers(read.headers).sequencer == lease.sequencer


@pytest.mark.campaign
@pytest.mark.process
def test_a_frozen_consumers_message_is_booked_once_by_another_and_a_stale_planners_is_refused(
    rabbit_fleet: RabbitFleet, purchases: Purchases
) -> None:
    with rabbit_fleet.new_server() as server, pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()

        def start(url: str) -> None:
            purchases.start("-c", f"import rabbit; rabbit.work_off({url!r})")

        def send(lease: fencelock.Lease | fencelock.Sequencer, purchase: int) -> None:
            body = json.dumps({"message_id": f"m{purchase}", "purchase": purchase, "amount": 10}).encode()
            channel.basic_publish("", "purchases", body, pika.BasicProperties(headers=to_headers(lease)))

        stale = purchases.stale_planner()
        purchases.run("-c", DECLARE.format(server.url))
        with purchases.source.lock("planner") as lease:
            purchases.plan.seal(lease)
            send(lease, 7)
            start(server.url + HEARTBEAT)
            frozen = purchases.freeze_first()
            start(server.url)
            wait_until(lambda: waiting(channel, "purchases.later"))
            former = purchases.end_lease(7)
            wait_until(purchases.bookings)
            send(stale, 8)
            wait_until(lambda: waiting(channel, "purchases.refused"))
            purchases.thaw(frozen)
            wait_until(lambda: purchases.has_ended(0))
        assert "refused lock='planner'" in purchases.log()
        [(purchase, token)] = purchases.bookings()
        assert purchase == 7
        assert token > former
        assert lease.sequencer.proof not in purchases.log()
