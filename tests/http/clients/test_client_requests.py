"""What a client of a lease sends with each request, and where it does not send it."""

import asyncio
import logging
import socket
import sys
import threading
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import aiohttp
import httpx
import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

import fencelock
from fencelock import (
    ConfigError,
    GuardError,
    LeaseReleasedError,
    MissingDependencyError,
    OutcomeUnknownError,
    SourceUnavailableError,
)
from fencelock.http.clients import rules
from fencelock.http.methods_and_paths import SEAL_PATH
from tests.http.clients.callers import NO_TRUST, Caller
from tests.http.clients.conftest import Opens
from tests.http.clients.scripted import LOST, OWN, SEAL, Answer, ScriptedService, problem
from tests.support.guards import HandmadeLease
from tests.support.helpers import wait_until, wait_until_async


def test_a_request_carries_the_sequencer_and_then_the_seals_that_were_told(
    caller: Caller, service: ScriptedService, lease: fencelock.Lease
) -> None:
    assert caller.call("PUT", "/report", json={"a": 1}).status == 200
    caller.call("PUT", "/report", json={"a": 1})
    first, second = service.received
    assert first.sequencer == lease.sequencer
    assert first.body == second.body
    assert (first.fields["fencing-sealed"], second.fields["fencing-sealed"]) == (None, f'"{SEAL}"')


def test_the_clients_of_one_tenure_share_what_they_were_told(
    opens: Opens, service: ScriptedService, lease: fencelock.Lease
) -> None:
    opens(lease, service.url).call("GET", "/report")
    opens(lease.sequencer, service.url).call("GET", "/report")
    assert service.received[1].fields["fencing-sealed"] == f'"{SEAL}"'


def test_each_unsafe_request_has_a_key_of_its_own_and_a_safe_one_has_none(
    opens: Opens, service: ScriptedService, lease: fencelock.Lease
) -> None:
    for caller in (opens(lease, service.url), opens(lease, service.url)):
        for method in ("POST", "PUT", "PATCH", "DELETE", "GET", "QUERY"):
            caller.call(method, "/report")
    keys = [received.key for received in service.received]
    assert keys[4] is keys[5] is keys[10] is keys[11] is None
    # The middleware asks for a token by the same division.
    assert [bool(received.key) for received in service.received] == [
        fencelock.http.needs_token(received.method, received.path) for received in service.received
    ]
    assert len({key for key in keys if key}) == 8
    assert all(key.startswith('"') and key.endswith('"') for key in keys if key)


def test_the_callers_own_key_is_sent_as_it_is(caller: Caller, service: ScriptedService) -> None:
    caller.call("PUT", "/report", headers={"Idempotency-Key": '"mine"'})
    assert service.received[0].key == '"mine"'


def test_a_lease_that_is_over_raises_its_own_error_and_nothing_is_sent(
    caller: Caller, service: ScriptedService, lease: fencelock.Lease
) -> None:
    lease.release()
    with pytest.raises(LeaseReleasedError):
        caller.call("PUT", "/report")
    assert not service.received


def test_the_release_of_a_lease_waits_for_its_requests(
    caller: Caller, service: ScriptedService, lease: fencelock.Lease
) -> None:
    """The service begins to release the lease while it has the request, and then sees that the release waits."""
    released = threading.Event()
    arrived = threading.Event()
    seen: list[bool] = []

    def release() -> None:
        arrived.wait(30)
        lease.release()
        released.set()

    releasing = threading.Thread(target=release)
    releasing.start()

    def look() -> None:
        arrived.set()
        while lease.is_valid:
            threading.Event().wait(0.001)
        seen.append(released.is_set())

    service.on_received = look
    caller.call("PUT", "/report")
    releasing.join()
    assert seen == [False]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_redirect_to_another_origin_does_not_get_the_token(
    caller: Caller, service: ScriptedService, method: str, status: int
) -> None:
    with ScriptedService() as other:
        service.answers.append(Answer(status, {"location": f"{other.url}/report"}))
        with pytest.raises(ConfigError, match=r"is not sent: the token is for http://127\.0\.0\.1:") as caught:
            caller.call(method, "/report", follow=True)
        assert not other.received
    # A guard had admitted the write: the service may have done it.
    assert caught.value.definite is (method == "GET")


@pytest.mark.parametrize("status", [307, 308])
def test_a_write_that_was_only_sent_elsewhere_is_definite(
    caller: Caller, service: ScriptedService, status: int
) -> None:
    service.answers.append(Answer(status, {"location": "https://reports.example/report"}, is_marked=False))
    with pytest.raises(ConfigError, match=r"PUT https://reports\.example/report is not sent") as caught:
        caller.call("PUT", "/report", follow=True)
    assert caught.value.definite


def test_a_redirect_within_the_origin_is_followed_with_the_token_and_the_same_key(
    caller: Caller, service: ScriptedService
) -> None:
    service.answers.append(Answer(308, {"location": "/reports/1"}, is_marked=False))
    assert caller.call("PUT", "/report", follow=True, json={"a": 1}).status == 200
    first, second = service.received
    assert (second.path, second.body, second.key) == ("/reports/1", first.body, first.key)
    assert second.sequencer == first.sequencer


def test_what_follows_a_write_and_fails_is_not_definite(caller: Caller, service: ScriptedService) -> None:
    service.answers += [
        Answer(303, {"location": "/reports/1"}),
        problem("stale-token", 412, token=OWN, mark="2", resource="reports"),
    ]
    with pytest.raises(fencelock.StaleTokenError) as caught:
        caller.call("POST", "/reports", follow=True)
    assert not caught.value.definite


def test_a_lease_that_ends_before_a_write_is_redirected_is_not_definite(
    caller: Caller, service: ScriptedService, lease: fencelock.Lease
) -> None:
    service.on_received = lease.release_soon
    service.answers.append(Answer(303, {"location": "/reports/1"}))
    with pytest.raises(fencelock.LeaseReleasedError) as caught:
        caller.call("POST", "/reports", follow=True)
    assert not caught.value.definite
    assert len(service.received) == 1


def test_a_client_of_several_services_sends_the_token_to_each(opens: Opens, lease: fencelock.Lease) -> None:
    with ScriptedService() as one, ScriptedService() as two:
        caller = opens(lease, one.url, origins=[one.url, two.url])
        for service in (one, two):
            assert caller.call("POST", f"{service.url}{SEAL_PATH}").status == 200
        for service in (one, two):
            caller.call("PUT", f"{service.url}/report")
        for service in (one, two):
            assert [bool(received.fields["fencing-sealed"]) for received in service.received] == [False, True]


def test_a_service_is_not_sealed_after_another_one_was_read(opens: Opens, lease: fencelock.Lease) -> None:
    with ScriptedService() as one, ScriptedService() as two:
        opens(lease, one.url).call("GET", "/report")
        with pytest.raises(GuardError, match=SEAL_PATH):
            opens(lease, two.url).call("PUT", "/report")
        assert not two.received
        opens(lease, two.url, independent=True).call("PUT", "/report")
        assert len(two.received) == 1


def test_a_service_is_not_sealed_after_a_guard_has_read(
    caller: Caller, service: ScriptedService, lease: fencelock.Lease
) -> None:
    lease.tenure.begin_reading((("sqlite:///app.db", "reports"),))
    with pytest.raises(GuardError, match="would be sealed after this tenure has read elsewhere"):
        caller.call("PUT", "/report")
    assert not service.received


@pytest.mark.parametrize("url", ["http://reports.example", "http://203.0.113.7:8080", "http://app.localhost"])
def test_no_token_goes_over_plain_http_beyond_this_machine(opens: Opens, lease: fencelock.Lease, url: str) -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        opens(lease, url)
    opens(lease, url, allow_plain_http=True)


@pytest.mark.parametrize("host", ["b\u00fccher.example", "xn--bcher-kva.example"])
def test_a_service_is_named_in_the_letters_of_its_language_or_as_it_is_looked_up(
    opens: Opens, service: ScriptedService, lease: fencelock.Lease, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", partial(_here, socket.getaddrinfo))
    caller = opens(lease, f"http://{host}:{service.port}", allow_plain_http=True)
    assert caller.call("GET", "/report").status == 200


def _here(look_up: Any, _host: object, *more: Any, **named: Any) -> Any:
    return look_up("127.0.0.1", *more, **named)


@pytest.mark.parametrize("url", ["http://localhost", "http://127.0.0.3", "http://[::1]:8000"])
def test_plain_http_within_this_machine_is_allowed(opens: Opens, lease: fencelock.Lease, url: str) -> None:
    opens(lease, url)


def test_a_client_without_a_service_is_refused(opens: Opens, lease: fencelock.Lease) -> None:
    with pytest.raises(ConfigError, match="origins="):
        opens(lease, "", origins=[])


@pytest.mark.parametrize("url", ["reports.example", "ftp://reports.example", "https://", "https://[x", "https://a:b"])
def test_what_names_no_service_is_refused(lease: fencelock.Lease, url: str) -> None:
    with requests.Session() as session, pytest.raises(ConfigError, match="does not name a service"):
        fencelock.http.client(lease, session, origins=[url])


@pytest.mark.parametrize(
    "url", ["ftp://jo:hidden@x", "https://jo:hid/hidden@x", "jo:hidden@x", "https://jo:hidden@x:y"]
)
def test_no_error_shows_the_password_of_what_names_no_service(lease: fencelock.Lease, url: str) -> None:
    with requests.Session() as session, pytest.raises(ConfigError, match="does not name a service") as caught:
        fencelock.http.client(lease, session, origins=[url])
    assert "hid" not in str(caught.value)


def test_what_is_no_client_is_refused(lease: fencelock.Lease) -> None:
    with pytest.raises(ConfigError, match="not str"):
        fencelock.http.client(lease, "https://reports.example")  # type: ignore[type-var]


def test_the_clients_own_proxy_does_not_get_the_token_in_plain_text(lease: fencelock.Lease) -> None:
    with ScriptedService() as proxy, ScriptedService() as service:
        with (
            httpx.Client(verify=NO_TRUST, base_url=service.url, proxy=proxy.url) as inner,
            pytest.raises(ConfigError, match="proxy"),
        ):
            fencelock.http.client(lease, inner).put("/report")
        with requests.Session() as session:
            session.proxies = {"http": proxy.url}
            with pytest.raises(ConfigError, match="proxy"):
                fencelock.http.client(lease, session, origins=[service.url]).put(f"{service.url}/report")
        assert not proxy.received
        assert not service.received


@pytest.mark.asyncio
async def test_a_proxy_of_aiohttp_does_not_get_the_token_in_plain_text(lease: fencelock.Lease) -> None:
    with ScriptedService() as proxy:
        async with aiohttp.ClientSession("http://127.0.0.1:9/", proxy=proxy.url) as inner:
            with pytest.raises(ConfigError, match="proxy"):
                await fencelock.http.client(lease, inner).put("/report")
        assert not proxy.received


def test_what_the_caller_sees_of_a_request_has_no_token(
    caller: Caller, service: ScriptedService, lease: fencelock.Lease, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caller.call("PUT", "/report")
    shown = caller.call("PUT", "/report", stream=True).shown
    assert {name.lower() for name in shown} & {"fencing-token", "fencing-sealed", "idempotency-key"} == {
        "idempotency-key"
    }
    secret = lease.sequencer.proof
    assert secret not in f"{caller.raw!r}{vars(caller.raw)}{shown}{caplog.text}"


def _shown(error: BaseException | None) -> str:
    """Return all that an error and its causes say, with the fields of the requests that they refer to."""
    if error is None:
        return ""
    fields = getattr(vars(error).get("_request") or vars(error).get("request"), "headers", {})
    return f"{error!r} {vars(error)} {dict(fields)} {_shown(error.__cause__ or error.__context__)}"


@pytest.mark.parametrize(
    "answer", [LOST, Answer(502), Answer(cut_bytes=5), Answer(is_marked=False)], ids=["lost", "502", "half", "no mark"]
)
def test_no_error_shows_the_token(
    caller: Caller, service: ScriptedService, lease: fencelock.Lease, answer: Answer
) -> None:
    service.answers.append(answer)
    with pytest.raises(fencelock.FencelockError) as caught:
        caller.call("PUT", "/report")
    assert lease.sequencer.proof not in _shown(caught.value)


def test_a_client_of_a_lease_is_not_made_a_client_of_another(caller: Caller, lease: fencelock.Lease) -> None:
    with pytest.raises(ConfigError, match="already"):
        fencelock.http.client(lease, caller.raw)


def test_the_clients_own_client_stays_as_it_was(lease: fencelock.Lease, service: ScriptedService) -> None:
    with requests.Session() as session, httpx.Client(verify=NO_TRUST, base_url=service.url) as plain:
        fencelock.http.client(lease, session, origins=[service.url]).put(f"{service.url}/report")
        fencelock.http.client(lease, plain).put("/report")
        session.put(f"{service.url}/report")
        plain.put("/report")
    assert [bool(received.fields["fencing-token"]) for received in service.received] == [True, True, False, False]


def test_an_adapter_that_is_mounted_later_sends_the_token_too(lease: fencelock.Lease, service: ScriptedService) -> None:
    with requests.Session() as session:
        api = fencelock.http.client(lease, session, origins=[service.url])
        api.mount(service.url, HTTPAdapter())
        api.put(f"{service.url}/report")
        with pytest.raises(ConfigError, match="sends a request again"):
            api.mount(service.url, HTTPAdapter(max_retries=3))
        api.put(f"{service.url}/report")
        session.put(f"{service.url}/report")
    assert [bool(received.fields["fencing-token"]) for received in service.received] == [True, True, False]


@pytest.mark.parametrize("retries", [3, Retry(total=None, read=1), Retry(connect=3, other=0, read=0)], ids=str)
def test_a_session_whose_adapter_repeats_requests_is_refused(lease: fencelock.Lease, retries: int | Retry) -> None:
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=retries))
        with pytest.raises(ConfigError, match="sends a request again"):
            fencelock.http.client(lease, session, origins=["https://reports.example"])


def test_a_session_whose_adapter_repeats_connections_is_taken(lease: fencelock.Lease, service: ScriptedService) -> None:
    unavailable = problem("unavailable", 503)
    service.answers += [Answer(), replace(unavailable, fields=unavailable.fields | {"retry-after": "1"}), LOST]
    retries = Retry(connect=3, read=0, status=0, other=0, respect_retry_after_header=False)
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=retries))
        client = fencelock.http.client(lease, session, origins=[service.url])
        assert client.put(f"{service.url}/report").ok
        with pytest.raises(SourceUnavailableError):
            client.put(f"{service.url}/report")
        with pytest.raises(OutcomeUnknownError):
            client.put(f"{service.url}/report")
    assert len(service.received) == 3


class RepeatingAdapter(HTTPAdapter):
    """An adapter that may have sent a request before the error that it raises."""

    def send(self, *arguments: Any, **options: Any) -> requests.Response:
        with suppress(requests.ConnectionError):
            return super().send(*arguments, **options)
        return super().send(*arguments, **options)


class RepeatingTransport(httpx.BaseTransport):
    """A transport that may have sent a request before the error that it raises."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("the second attempt found nobody", request=request)


def test_an_error_of_a_transport_that_repeats_requests_is_never_definite(lease: fencelock.Lease) -> None:
    with ScriptedService() as closed:
        pass
    with requests.Session() as session, httpx.Client(base_url=closed.url, transport=RepeatingTransport()) as plain:
        session.mount("http://", RepeatingAdapter())
        with pytest.raises(OutcomeUnknownError):
            fencelock.http.client(lease, session, origins=[closed.url]).put(f"{closed.url}/report")
        with pytest.raises(OutcomeUnknownError) as caught:
            fencelock.http.client(lease, plain).put("/report")
    assert lease.sequencer.proof not in _shown(caught.value)


class OwnSession(requests.Session):
    """A session of the caller's own class."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = "kept"


class OwnClient(httpx.Client):
    """A client of the caller's own class."""


@pytest.mark.asyncio
async def test_a_client_of_the_callers_own_class_stays_one(lease: fencelock.Lease, service: ScriptedService) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # aiohttp's, of the caller's class.
        own_kind = type("OwnAiohttpSession", (aiohttp.ClientSession,), {})
    with OwnSession() as session, OwnClient(verify=NO_TRUST, base_url=service.url) as plain:
        made = fencelock.http.client(lease, session, origins=[service.url])
        assert (type(made), made.extra) == (OwnSession, "kept")
        assert type(fencelock.http.client(lease, plain)) is OwnClient
    async with fencelock.http.client(lease, own_kind(f"{service.url}/")) as api:
        assert isinstance(api, own_kind)
        assert (await api.put("report")).status == 200


def test_a_library_that_is_too_old_is_named(lease: fencelock.Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fencelock.http.clients.requests", None)
    with requests.Session() as session, pytest.raises(MissingDependencyError, match="pip install --upgrade requests"):
        fencelock.http.client(lease, session, origins=["https://reports.example"])


@pytest.mark.asyncio
async def test_aiohttp_sends_a_request_once_on_a_connection_that_the_service_closes(lease: fencelock.Lease) -> None:
    """On its own aiohttp repeats a PUT whose kept connection ended, although the service may have done it."""
    with ScriptedService([Answer(keeps_open=True), LOST]) as service:
        async with fencelock.http.client(lease, aiohttp.ClientSession(f"{service.url}/")) as session:
            await session.put("report")
            with pytest.raises(OutcomeUnknownError):
                await session.put("report")
        assert len(service.received) == 2


def test_digest_authentication_repeats_the_request_with_the_token_and_the_key(
    lease: fencelock.Lease, service: ScriptedService
) -> None:
    asks = {"www-authenticate": 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'}
    with requests.Session() as session, httpx.Client(verify=NO_TRUST, base_url=service.url) as plain:
        session.auth = requests.auth.HTTPDigestAuth("user", "password")
        for put in (
            lambda: fencelock.http.client(lease, session, origins=[service.url]).put(f"{service.url}/report"),
            lambda: fencelock.http.client(lease, plain).put("/report", auth=httpx.DigestAuth("user", "password")),
        ):
            service.received.clear()
            service.answers.append(Answer(401, asks, is_marked=False))
            assert put().status_code == 200
            first, second = service.received
            assert (first.key, first.sequencer) == (second.key, second.sequencer)


def test_threads_and_loops_wait_for_the_first_seal_of_a_service(opens: Opens, service: ScriptedService) -> None:
    """Two requests without a seal to repeat are never on their way at once (G9)."""
    holder = HandmadeLease(7)
    answered = threading.Event()
    service.answers.append(Answer(after=answered))
    callers = [opens(holder, service.url) for _ in range(3)]
    threads = [threading.Thread(target=caller.call, args=["GET", "/report"]) for caller in callers]
    for thread in threads:
        thread.start()
    wait_until(lambda: holder.open_transactions == len(threads))
    answered.set()
    for thread in threads:
        thread.join()
    assert [received.fields["fencing-sealed"] for received in service.received] == [None, f'"{SEAL}"', f'"{SEAL}"']


def test_a_lease_that_ends_while_a_request_waits_for_its_turn_sends_nothing(
    opens: Opens, service: ScriptedService
) -> None:
    holder = HandmadeLease(7)
    answered = threading.Event()
    service.answers.append(Answer(after=answered))
    errors: list[Exception] = []

    def get(caller: Caller) -> None:
        try:
            caller.call("GET", "/report")
        except LeaseReleasedError as error:
            errors.append(error)

    threads = [threading.Thread(target=get, args=[opens(holder, service.url)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: holder.open_transactions == len(threads) and service.received)
    holder.problem = LeaseReleasedError("released")
    answered.set()
    for thread in threads:
        thread.join()
    assert (len(errors), len(service.received)) == (1, 1)


def test_a_request_does_not_wait_for_ever_for_the_first_one(
    opens: Opens, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = HandmadeLease(7)
    answered = threading.Event()
    service.answers.append(Answer(after=answered))
    first = threading.Thread(target=opens(holder, service.url).call, args=["GET", "/report"])
    first.start()
    wait_until(lambda: service.received)
    monkeypatch.setattr(rules, "FIRST_ANSWER_LIMIT_S", 0.01)
    with pytest.raises(SourceUnavailableError, match=r"no answer after 0\.01 s"):
        opens(holder, service.url).call("GET", "/report")
    answered.set()
    first.join()
    assert len(service.received) == 1


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_while_it_waits_ends_no_other_request(service: ScriptedService) -> None:
    holder = HandmadeLease(7)
    answered = threading.Event()
    service.answers.append(Answer(after=answered))
    async with httpx.AsyncClient(verify=NO_TRUST, base_url=service.url) as inner:
        client = fencelock.http.client(holder, inner)
        first, waiting, last = (asyncio.create_task(client.get("/report")) for _ in range(3))
        await wait_until_async(lambda: holder.open_transactions == 3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        answered.set()
        assert {(await first).status_code, (await last).status_code} == {200}
    assert len(service.received) == 2


def test_a_first_request_that_fails_lets_the_next_one_go(caller: Caller, service: ScriptedService) -> None:
    service.answers += [LOST, Answer(401, is_marked=False)]
    with pytest.raises(OutcomeUnknownError):
        caller.call("GET", "/report")
    assert caller.call("GET", "/report").status == 401
    assert caller.call("GET", "/report").status == 200
    assert [received.fields["fencing-sealed"] for received in service.received] == [None] * 3
