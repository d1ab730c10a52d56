"""Celery tasks that take a lock for each delivery: what is sent again, what fails, and a worker that freezes."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
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
from tests.structure.doc_blocks import files
from tests.support.helpers import DEADLINE_S, ROOT, freeze, wait_until

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


def test_celery_checks_the_arguments_of_a_call_without_the_lease(source: fencelock.Source) -> None:
    app = celery.Celery("t", broker="memory://")
    book = app.task(bind=True, acks_late=True)(task_that(source, lambda lease: lease.token))
    with pytest.raises(TypeError, match="3 were given"):
        book.apply_async((7, 8))
    assert book.apply((7,)).get() == 1


# --- the page's tasks, in real workers --------------------------------------------------------------------------------
PAGE = (ROOT / "docs" / "how-to" / "fence-message-handlers.md").read_text()
SHORT = {"TTL_S": 60.0, "RETRY_S": 0.2, "VISIBLE_S": 1, "LOOK_S": 0.2}
CARRIER = """
import os, time

def label_for(purchase):
    try:
        os.close(os.open("first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    with open("pid.new", "w") as file: file.write(str(os.getpid()))
    os.rename("pid.new", "pid")
    while not os.path.exists("go"): time.sleep(0.005)
"""
"""The first call says who it is, and waits where the test freezes it."""
WORKER = (
    "worker",
    "--pool",
    "solo",
    "--loglevel",
    "INFO",
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
)


class Workers:
    """The files of the page, a broker, and the workers that run the page's tasks."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self._url = url
        self._programs: list[subprocess.Popen[bytes]] = []
        shown = {name: text for name, text in files(PAGE).items() if name in ("prepare.py", "bookings.py", "tasks.py")}
        for name, text in (shown | {"carrier.py": CARRIER}).items():
            (folder / name).write_text(re.sub(r"(?m)^(\w+_S) = .*$", _shortened, text))
        subprocess.run([sys.executable, "prepare.py"], cwd=folder, check=True, timeout=DEADLINE_S)
        self.source = fencelock.connect(f"sqlite:///{folder}/locks.db")
        self.source.install()
        self.plan = fencelock.guard(f"sqlite:///{folder}/app.db", resource="plan", lock="planner")

    def start(self) -> None:
        number = len(self._programs)
        words = [sys.executable, "-m", "celery", "-A", "tasks", *WORKER, "--hostname", f"w{number}"]
        environment = os.environ | {"BROKER_URL": self._url}
        with self._log_of(number).open("wb") as log:
            self._programs.append(
                subprocess.Popen(
                    words, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _log_of(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    def log(self) -> str:
        return "".join(self._log_of(number).read_text() for number in range(len(self._programs)))

    def send(self, lease: fencelock.Lease, purchase: int) -> None:
        with celery.Celery("tests", broker=self._url) as app:
            app.send_task("tasks.book_purchase", (purchase, 10), headers=to_headers(lease))

    def bookings(self) -> list[tuple[int, int]]:
        with closing(sqlite3.connect(self.folder / "app.db", timeout=DEADLINE_S)) as connection:
            return connection.execute("SELECT purchase, token FROM booking").fetchall()

    def wait_until_all_is_acknowledged(self) -> None:
        """Wait until the broker keeps no message: none that waits, none that is not acknowledged."""
        with redis.Redis.from_url(self._url) as broker:
            wait_until(lambda: not broker.llen("celery") and not broker.hlen("unacked"))

    def close(self) -> None:
        for one in self._programs:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait(DEADLINE_S)
        self.source.close()
        print(self.log())


def _shortened(setting: re.Match[str]) -> str:
    return f"{setting[1]} = {SHORT[setting[1]]}"


@pytest.fixture
def workers(redis_fleet: RedisFleet, tmp_path: Path) -> Iterator[Workers]:
    with redis_fleet.new_server() as server, closing(Workers(tmp_path, server.url)) as workers:
        yield workers


@pytest.mark.process
@pytest.mark.slow
def test_a_frozen_workers_task_is_done_once_by_another_and_a_stale_planners_fails(workers: Workers) -> None:
    old = workers.source.lock("planner").acquire()
    assert old is not None
    workers.send(old, 8)
    old.release()
    workers.start()
    with workers.source.lock("planner") as lease:
        workers.plan.seal(lease)
        # The stale planner's task comes first: it must not be the one that waits.
        (workers.folder / "first").touch()
        wait_until(lambda: "StaleTokenError" in workers.log())
        (workers.folder / "first").unlink()
        workers.send(lease, 7)
        wait_until((workers.folder / "pid").exists)
        pid = int((workers.folder / "pid").read_text())
        freeze(pid, workers.folder / "locks.db", workers.folder / "app.db")
        workers.start()
        wait_until(lambda: "AcquireTimeoutError" in workers.log())
        assert workers.bookings() == []
        before = workers.source.info("purchase:7").token
        assert before is not None
        workers.source.break_lock("purchase:7", reason="as if it had expired")
        wait_until(workers.bookings)
        (workers.folder / "go").touch()
        os.kill(pid, signal.SIGCONT)
        workers.wait_until_all_is_acknowledged()
    [(purchase, token)] = workers.bookings()
    assert purchase == 7
    assert token > before
