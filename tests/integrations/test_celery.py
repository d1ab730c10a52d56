"""Celery tasks that take a lock for each delivery: what is sent again, what fails, and a worker that freezes."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import pytest
import redis
from celery.exceptions import Reject, Retry

import fencelock
from fencelock.integrations.celery import one_at_a_time
from fencelock.messages import to_headers
from fencelock_lab.servers.redis import RedisFleet
from tests.integrations.purchases import Purchases
from tests.support.helpers import wait_until

LOST = fencelock.LeaseLostError("lost", reason="broken")


class FakeTask:
    """A bound task as a worker calls it: remembers how it was sent again."""

    acks_late = True

    def __init__(self, broker_error: Exception | None = None, **request: Any) -> None:
        self.request = SimpleNamespace(**({"called_directly": False, "is_eager": False, "retries": 2} | request))
        self.sent: list[dict[str, Any]] = []
        self._broker_error = broker_error

    def signature_from_request(self, **options: Any) -> Any:
        return SimpleNamespace(apply_async=lambda: self._send(options))

    def _send(self, options: dict[str, Any]) -> None:
        if self._broker_error is not None:
            raise self._broker_error
        self.sent.append(options)


def task_that(source: fencelock.Source, handler: Callable[[fencelock.Lease], object]) -> Callable[..., Any]:
    @one_at_a_time(source, lambda number: f"task/{number}", retry_after=7.0)
    def run(task: Any, lease: fencelock.Lease, number: int) -> object:
        return handler(lease)

    return run


def raising(error: Exception) -> Callable[[fencelock.Lease], object]:
    def handler(lease: fencelock.Lease) -> object:
        raise error

    return handler


def stale(lease: fencelock.Lease, *, by: int = 0) -> fencelock.StaleTokenError:
    return fencelock.StaleTokenError("stale", token=lease.token + by, mark=99, resource="r")


def test_the_handler_gets_a_lease_on_the_lock_of_its_key(source: fencelock.Source) -> None:
    run = task_that(source, lambda lease: (lease.lock, lease.is_valid))
    assert run(FakeTask(), 7) == ("task/7", True)
    assert not source.info("task/7").is_held


def test_while_the_lock_is_held_the_task_is_sent_again_and_not_dropped(source: fencelock.Source) -> None:
    task = FakeTask()
    with source.lock("task/7"), pytest.raises(Retry, match="7"):
        task_that(source, raising(AssertionError("it ran")))(task, 7)
    assert task.sent == [{"countdown": 7.0, "retries": 2}], "none of the task's own retries is used up"


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        fencelock.LeaseExpiredError("expired"),
        fencelock.SourceUnavailableError("away"),
        fencelock.AcquireTimeoutError("another lock"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_another_delivery_may_do_is_sent_again(source: fencelock.Source, error: Exception) -> None:
    task = FakeTask()
    with pytest.raises(Retry):
        task_that(source, raising(error))(task, 7)
    assert len(task.sent) == 1


def test_a_stale_token_of_its_own_is_sent_again_and_a_producers_is_not(source: fencelock.Source) -> None:
    def own(lease: fencelock.Lease) -> object:
        raise stale(lease)

    def producers(lease: fencelock.Lease) -> object:
        raise stale(lease, by=-1)

    task = FakeTask()
    with pytest.raises(Retry):
        task_that(source, own)(task, 7)
    with pytest.raises(fencelock.StaleTokenError):
        task_that(source, producers)(task, 7)
    assert len(task.sent) == 1


def test_a_group_is_sent_again_if_each_of_its_errors_is(source: fencelock.Source) -> None:
    def raising_group(*, by: int) -> Callable[[fencelock.Lease], object]:
        def handler(lease: fencelock.Lease) -> object:
            raise ExceptionGroup("of a task group", [stale(lease, by=by), LOST])

        return handler

    task = FakeTask()
    with pytest.raises(Retry):
        task_that(source, raising_group(by=0))(task, 7)
    with pytest.raises(ExceptionGroup):
        task_that(source, raising_group(by=-1))(task, 7)
    assert len(task.sent) == 1


@pytest.mark.parametrize("error", [ValueError("mine"), fencelock.WrongLockError("wrong")], ids=repr)
def test_what_would_fail_again_fails(source: fencelock.Source, error: Exception) -> None:
    task = FakeTask()
    with pytest.raises(type(error)):
        task_that(source, raising(error))(task, 7)
    assert task.sent == []


def test_what_was_done_before_is_a_success_with_its_result(source: fencelock.Source) -> None:
    done = fencelock.AlreadyDoneError("done", result="label 7", token=3)
    assert task_that(source, raising(done))(FakeTask(), 7) == "label 7"


def test_a_broker_that_takes_no_message_gets_the_delivery_back(source: fencelock.Source) -> None:
    with source.lock("task/7"), pytest.raises(Reject) as raised:
        task_that(source, raising(LOST))(FakeTask(ConnectionError("the broker is away")), 7)
    assert raised.value.requeue


@pytest.mark.parametrize("name", ["called_directly", "is_eager"])
def test_without_a_broker_the_error_is_raised(source: fencelock.Source, name: str) -> None:
    with pytest.raises(fencelock.LeaseLostError):
        task_that(source, raising(LOST))(FakeTask(**{name: True}), 7)


def test_a_task_that_would_be_dropped_with_its_worker_is_refused(source: fencelock.Source) -> None:
    task = FakeTask()
    task.acks_late = False
    with pytest.raises(fencelock.ConfigError, match="bind=True, acks_late=True"):
        task_that(source, raising(LOST))(task, 7)
    with pytest.raises(fencelock.ConfigError, match="bind=True"):
        task_that(source, raising(LOST))(7, 7)


@pytest.mark.parametrize("pause", [0, -1.0, "5", None, True])
def test_a_pause_that_is_none_is_refused(source: fencelock.Source, pause: object) -> None:
    with pytest.raises(fencelock.ConfigError, match="retry_after is the seconds"):
        one_at_a_time(source, str, retry_after=pause)


async def asynchronous(task: object, lease: object) -> None: ...


def plain(number: int) -> None: ...


@pytest.mark.parametrize(
    ("handler", "complaint"),
    [
        (asynchronous, "is async, and this lock is not"),
        (lambda task: None, "gets a task and a lease first"),
        (celery.Celery("t", set_as_current=False).task(plain), "write it below @app.task"),
    ],
    ids=["async", "no-lease", "a-task"],
)
def test_what_cannot_run_under_a_lease_is_refused_when_it_is_decorated(
    source: fencelock.Source, handler: Callable[..., Any], complaint: str
) -> None:
    with pytest.raises(fencelock.ConfigError, match=complaint):
        one_at_a_time(source, str)(handler)


def test_celery_checks_the_arguments_of_a_call_without_the_lease(source: fencelock.Source) -> None:
    app = celery.Celery("t", broker="memory://")
    book = app.task(bind=True, acks_late=True)(task_that(source, lambda lease: lease.token))
    with pytest.raises(TypeError, match="3 were given"):
        book.apply_async((7, 8))
    assert book.apply((7,)).get() == 1


# --- the page's tasks, in real workers --------------------------------------------------------------------------------
WORKER = "-m celery -A tasks worker --loglevel INFO --without-gossip --without-mingle --without-heartbeat"


@pytest.fixture
def purchases(tmp_path: Path) -> Iterator[Purchases]:
    with closing(Purchases(tmp_path)) as purchases:
        yield purchases


@pytest.mark.process
@pytest.mark.slow
def test_a_frozen_workers_task_is_done_once_by_another_and_a_stale_planners_fails(
    redis_fleet: RedisFleet, purchases: Purchases
) -> None:
    with redis_fleet.new_server() as server:

        def start(name: str) -> None:
            purchases.start(*WORKER.split(), "--pool", "solo", "--hostname", name, BROKER_URL=server.url)

        def send(lease: fencelock.Lease | fencelock.Sequencer, purchase: int) -> None:
            with celery.Celery("tests", broker=server.url) as app:
                app.send_task("tasks.book_purchase", (purchase, 10), headers=to_headers(lease))

        send(purchases.stale_planner(), 8)
        purchases.set_stopping(is_stopping=False)
        with purchases.source.lock("planner") as lease:
            purchases.plan.seal(lease)
            start("one")
            wait_until(lambda: "StaleTokenError" in purchases.log())
            purchases.set_stopping(is_stopping=True)
            send(lease, 7)
            frozen = purchases.freeze_first()
            start("two")
            wait_until(lambda: "AcquireTimeoutError" in purchases.log())
            former = purchases.end_lease(7)
            wait_until(purchases.bookings)
            purchases.thaw(frozen)
        with redis.Redis.from_url(server.url) as broker:
            wait_until(lambda: not broker.llen("celery") and not broker.hlen("unacked"))
        [(purchase, token)] = purchases.bookings()
        assert purchase == 7
        assert token > former
        assert lease.sequencer.proof not in purchases.log()


@pytest.mark.campaign
@pytest.mark.process
def test_a_task_whose_forked_process_is_killed_is_done_once_by_another(
    redis_fleet: RedisFleet, purchases: Purchases
) -> None:
    with redis_fleet.new_server() as server:
        with purchases.source.lock("planner") as lease:
            purchases.plan.seal(lease)
            with celery.Celery("tests", broker=server.url) as app:
                app.send_task("tasks.book_purchase", (7, 10), headers=to_headers(lease))
            purchases.start(*WORKER.split(), "--concurrency", "2", BROKER_URL=server.url)
            os.kill(purchases.freeze_first(), signal.SIGKILL)
            wait_until(lambda: "AcquireTimeoutError" in purchases.log())
            former = purchases.end_lease(7)
            wait_until(purchases.bookings)
        [(purchase, token)] = purchases.bookings()
        assert purchase == 7
        assert token > former
