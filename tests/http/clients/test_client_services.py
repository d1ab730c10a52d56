"""Clients of a lease against real services: the same application behind a server, and in this process."""

import itertools
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import uvicorn
from starlette.testclient import TestClient

import fencelock.http
from fencelock import GuardError, OutcomeUnknownError, SealLostError, StaleTokenError, UnfencedWriteError
from fencelock.http import FencingMiddleware, WSGIFencingMiddleware
from fencelock.http.methods_and_paths import SEAL_PATH
from tests.http.clients.callers import Caller
from tests.http.clients.conftest import Opens
from tests.http.frameworks import Report, bare_wsgi, starlette_app
from tests.support.guards import LOCK, HandmadeLease, make_file, value_in
from tests.support.helpers import wait_until

TOKENS = itertools.count(10)


@dataclass(frozen=True)
class RealService:
    """A server, and the report that it answers with."""

    url: str
    report: Report


def fenced_app(report: Report) -> object:
    """Return the report's application with the middleware around its routes."""
    app = starlette_app(report)
    app.add_middleware(FencingMiddleware, lock=LOCK, guards=[report.guard])
    return app


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealService]:
    """Yield a service for all tests: each has tokens above those of the last one."""
    report = Report(make_file(tmp_path_factory.mktemp("service") / "app.db"))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(fenced_app(report), log_level="critical", lifespan="off"))
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    serving.start()
    wait_until(lambda: server.started)
    yield RealService(f"http://127.0.0.1:{listener.getsockname()[1]}", report)
    server.should_exit = True
    serving.join()


@pytest.fixture
def holder() -> HandmadeLease:
    """Return a lease with a token above all earlier ones."""
    return HandmadeLease(next(TOKENS))


@pytest.fixture
def api(opens: Opens, holder: HandmadeLease, served: RealService) -> Caller:
    """Return a client of the lease for the service."""
    return opens(holder, served.url)


def test_a_job_seals_reads_and_writes_and_is_refused_once_its_successor_has_sealed(
    api: Caller, opens: Opens, holder: HandmadeLease, served: RealService
) -> None:
    assert api.call("POST", SEAL_PATH).status == 204
    assert api.call("PUT", "/report/7").status == 200
    assert api.call("GET", "/report").body == b"7"
    assert api.call("GET", "/gone").status == 404
    successor = HandmadeLease(next(TOKENS))
    opens(successor, served.url).call("PUT", "/report/8")
    for method, path in [("PUT", "/report/9"), ("GET", "/report")]:
        with pytest.raises(StaleTokenError) as caught:
            api.call(method, path)
        assert (caught.value.token, caught.value.mark) == (holder.sequencer.token, successor.sequencer.token)
    assert value_in(served.report.path) == 8


def test_a_request_that_is_repeated_with_its_key_is_done_once(api: Caller, served: RealService) -> None:
    api.call("PUT", "/report/10")
    first = api.call("POST", "/report/5")
    again = api.call("POST", "/report/5", headers={"Idempotency-Key": first.shown["Idempotency-Key"]})
    assert (first.status, again.status) == (201, 200)
    assert first.body == again.body
    assert value_in(served.report.path) == 15


def test_a_route_that_asks_no_guard_is_noticed(api: Caller) -> None:
    with pytest.raises(UnfencedWriteError):
        api.call("GET", "/public")
    with pytest.raises(UnfencedWriteError) as caught:
        api.call("PUT", "/unguarded")
    assert not caught.value.definite


def test_an_error_of_the_handlers_own_is_an_unknown_outcome(api: Caller) -> None:
    with pytest.raises(OutcomeUnknownError):
        api.call("PUT", "/raise")


def test_a_seal_that_the_resource_lost_is_told(api: Caller, holder: HandmadeLease, served: RealService) -> None:
    """G9: the client repeats what it was told, and the service does not seal again."""
    api.call("GET", "/report")
    served.report.guard.lower(holder.sequencer.token - 1, reason="as a failover does")
    with pytest.raises(SealLostError):
        api.call("PUT", "/report/9")


def test_an_application_in_this_process_is_called_like_a_service(tmp_path: Path, holder: HandmadeLease) -> None:
    report = Report(make_file(tmp_path / "app.db"))
    with fencelock.http.client(holder, TestClient(fenced_app(report)), allow_plain_http=True) as api:
        assert api.put("/report/7").status_code == 200
    wsgi = httpx2.WSGITransport(WSGIFencingMiddleware(bare_wsgi(report), lock=LOCK))
    with httpx2.Client(transport=wsgi, base_url="https://reports.example") as inner:
        assert fencelock.http.client(holder, inner, independent=True).get("/report").text == "7"


def test_a_handler_that_passes_its_sequencer_on_is_a_client_too(served: RealService, opens: Opens) -> None:
    carried = fencelock.http.CarriedSequencer(HandmadeLease(next(TOKENS)).sequencer)
    api = opens(carried, served.url)
    assert api.call("PUT", "/report/3").status == 200
    assert api.call("PUT", "/report/4").status == 200


def test_a_service_is_sealed_before_another_one_is_read(
    api: Caller, opens: Opens, holder: HandmadeLease, tmp_path: Path
) -> None:
    other = Report(make_file(tmp_path / "other.db"))
    with other.guard.transaction(holder):
        pass
    with pytest.raises(GuardError, match="would be sealed after"):
        api.call("PUT", "/report/1")
