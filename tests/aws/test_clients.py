"""The clients of AWS: one request for each call, errors with the right `definite`, and forks, in both APIs."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from fencelock._keeper.keeper import REQUEST_TIMEOUT_S
from fencelock.errors import FencelockError, OutcomeUnknownError, SchemaError, SourceError, SourceUnavailableError
from fencelock.stores.aws import clients as module
from fencelock.stores.aws import documents
from fencelock.stores.aws.clients import AsyncAwsClient, AwsClient, Call, Refusal, Reply
from fencelock.stores.aws.documents import MIN_TIMEOUT_S
from fencelock.stores.aws.url import AwsConnectionInfo, parse_dynamodb_url, parse_s3_url
from fencelock.stores.registry import source_store
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from fencelock_lab.servers.ministack import CREDENTIALS
from tests.aws.service import CUT, Service, answer, service
from tests.support.helpers import DEADLINE_S, wait_until, wait_until_async

READ = Call("describe_table", {"TableName": "locks"})
WRITE = Call(
    "put_item",
    {"TableName": "locks", "Item": {"pk": {"S": "a"}}, "ConditionExpression": "attribute_not_exists(pk)"},
    frozenset({"ConditionalCheckFailedException"}),
)
PUT = Call(
    "put_object",
    {"Bucket": "bucket", "Key": "key", "Body": b"text", "IfNoneMatch": "*"},
    frozenset({"PreconditionFailed"}),
)
SHORT_S = 0.2
"""The timeout where a test waits for its end."""
SECRET = "the-secret-key"
Clients = dict[tuple[str | None, ...], Any]
Send = Callable[[AwsConnectionInfo, Call, float], Reply]


def send(info: AwsConnectionInfo, call: Call, timeout_s: float = DEADLINE_S) -> Reply:
    return AwsClient(info, timeout_s).call(call)


def send_async(info: AwsConnectionInfo, call: Call, timeout_s: float = DEADLINE_S) -> Reply:
    return asyncio.run(AsyncAwsClient(info, timeout_s).call(call))


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    """Return the clients of this process, which are none at first."""
    monkeypatch.setattr(module, "_CLIENTS", {})
    return module._CLIENTS


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture(params=[send, send_async], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Send:
    return request.param


def info_of(running: Service, call: Call = READ) -> AwsConnectionInfo:
    return info_at(running.endpoint, call)


def info_at(endpoint: str, call: Call) -> AwsConnectionInfo:
    if call is PUT:
        return parse_s3_url(f"s3://bucket?endpoint={endpoint}")
    return parse_dynamodb_url(f"dynamodb://eu-central-1/locks?endpoint={endpoint}")


def refused(kind: str, status: str = "400 Bad Request", **more: str) -> bytes:
    members = "".join(f',"{name}":{value}' for name, value in more.items())
    return answer(status, f'{{"__type":"com.amazonaws.dynamodb#{kind}","message":"so"{members}}}'.encode())


@pytest.mark.parametrize("call", [WRITE, PUT], ids=["dynamodb", "s3"])
def test_a_write_whose_reply_is_lost_is_sent_once_and_its_outcome_unknown(
    ask: Send, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Botocore's own repetition, and aiohttp's of a PUT, would be refused by what the first request has written."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
    already = answer("412 Precondition Failed", b"") if call is PUT else refused("ConditionalCheckFailedException")
    with service(CUT, already) as running:
        with pytest.raises(OutcomeUnknownError) as caught:
            ask(info_of(running, call), call)
        assert len(running.requests) == 1
    assert not caught.value.definite


@pytest.mark.parametrize("call", [WRITE, PUT], ids=["dynamodb", "s3"])
@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Service Unavailable"])
def test_an_error_of_the_server_is_not_repeated_and_indefinite(ask: Send, call: Call, status: str) -> None:
    with service(answer(status, b"")) as running:
        with pytest.raises(OutcomeUnknownError):
            ask(info_of(running, call), call)
        assert len(running.requests) == 1


def test_a_reply_that_does_not_come_is_waited_for_as_long_as_the_timeout(ask: Send) -> None:
    with service(None) as running:
        with pytest.raises(OutcomeUnknownError):
            ask(info_of(running), READ, SHORT_S)
        assert len(running.requests) <= 1  # A loaded machine may not have sent it by then.


def test_a_reply_that_breaks_off_is_indefinite(ask: Send) -> None:
    with service(answer("200 OK", b'{"Table": {}}')[:-4]) as running, pytest.raises(OutcomeUnknownError):
        ask(info_of(running), READ, SHORT_S)


def test_nobody_listening_is_definite(ask: Send) -> None:
    with service(CUT) as running:
        info = info_of(running)
    with pytest.raises(SourceUnavailableError) as caught:
        ask(info, WRITE)
    assert caught.value.definite


def test_a_host_without_an_address_is_definite(ask: Send) -> None:
    info = parse_dynamodb_url("dynamodb://eu-central-1/locks?endpoint=http://no.such.host.invalid")
    with pytest.raises(SourceUnavailableError):
        ask(info, WRITE)


def test_an_expected_refusal_is_a_value_with_all_that_was_said(ask: Send) -> None:
    with service(refused("ConditionalCheckFailedException", Item='{"pk": {"S": "b"}}')) as running:
        reply = ask(info_of(running), WRITE)
    assert isinstance(reply, Refusal)
    assert (reply.code, reply.message) == ("ConditionalCheckFailedException", "so")
    assert reply.reply["Item"] == {"pk": {"S": "b"}}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ProvisionedThroughputExceededException", SourceUnavailableError),
        ("ThrottlingException", SourceUnavailableError),
        ("TransactionConflictException", SourceUnavailableError),
        ("ResourceNotFoundException", SchemaError),
        ("AccessDeniedException", SourceError),
        ("UnrecognizedClientException", SourceError),
        ("ConditionalCheckFailedException", SourceError),
        ("ValidationException", SourceError),
    ],
)
def test_a_refusal_is_definite_and_says_why(ask: Send, code: str, error: type[FencelockError]) -> None:
    with service(refused(code)) as running, pytest.raises(error, match="so") as caught:
        ask(info_of(running), READ)
    assert type(caught.value) is error
    assert caught.value.definite
    assert SECRET not in str(caught.value)


def test_a_denial_of_s3_names_the_bucket_that_may_be_missing_and_no_grant_that_no_policy_prints(ask: Send) -> None:
    body = b"<Error><Code>AccessDenied</Code><Message>so</Message></Error>"
    with service(answer("403 Forbidden", body)) as running, pytest.raises(SourceError) as caught:
        ask(info_of(running, PUT), PUT)
    assert "check that the bucket 'bucket' exists" in str(caught.value)
    assert "as `--print-policy` prints it" not in str(caught.value)


def test_a_body_is_read(ask: Send) -> None:
    with service(answer("200 OK", b"content", ETag='"e"')) as running:
        info = info_of(running, PUT)
        reply = ask(info, Call("get_object", {"Bucket": "bucket", "Key": "key"}))
    assert isinstance(reply, dict)
    assert (reply["Body"], reply["ETag"]) == (b"content", '"e"')


def test_a_body_that_breaks_off_is_an_error(ask: Send) -> None:
    with service(answer("200 OK", b"content")[:-3]) as running, pytest.raises(OutcomeUnknownError):
        ask(info_of(running, PUT), Call("get_object", {"Bucket": "bucket", "Key": "key"}), SHORT_S)


def test_the_environment_does_not_choose_the_server(ask: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    with service(answer("200 OK")) as named, service(answer("200 OK")) as configured:
        monkeypatch.setenv("AWS_ENDPOINT_URL", configured.endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", configured.endpoint)
        ask(info_of(named), READ)
        assert (len(named.requests), len(configured.requests)) == (1, 0)


def test_missing_credentials_are_an_error_that_says_what_to_give(ask: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with service(answer("200 OK")) as running, pytest.raises(SourceError, match="give credentials") as caught:
        ask(info_of(running), READ)
    assert caught.value.definite
    assert running.requests == []


def test_a_profile_that_does_not_exist_is_an_error(ask: Send) -> None:
    info = parse_dynamodb_url("dynamodb://eu-central-1/locks?profile=nobody")
    with pytest.raises(SourceError, match="nobody"):
        ask(info, READ)


@pytest.mark.parametrize("arguments", [{"TableName": 1}, {"TableName": "locks", "Item": 1}])
def test_a_value_that_does_not_fit_is_definite(ask: Send, arguments: dict[str, object]) -> None:
    with service(answer("200 OK")) as running:
        with pytest.raises(SourceError, match="was not asked"):
            ask(info_of(running), Call("put_item", arguments))
        assert running.requests == []


def test_a_reply_that_is_not_understood_is_indefinite(ask: Send) -> None:
    with service(answer("200 OK", b"<html>")) as running, pytest.raises(OutcomeUnknownError):
        ask(info_of(running, PUT), Call("list_objects_v2", {"Bucket": "bucket"}))


def test_connections_are_used_again() -> None:
    with service(answer("200 OK")) as running:
        info = info_of(running)
        for _ in range(3):
            send(info, READ)
        assert len(running._held) == 1
        asyncio.run(_send_each(info))
        assert len(running._held) == 2


async def _send_each(info: AwsConnectionInfo) -> None:
    for _ in range(3):
        await AsyncAwsClient(info, DEADLINE_S).call(READ)


def test_a_loop_that_ends_leaves_nothing_open(clients: Clients) -> None:
    """Aiohttp would warn, and warnings are errors."""
    with service(answer("200 OK")) as running:
        for _ in range(2):
            asyncio.run(_send_each(info_of(running)))
            gc.collect()
            (natives,) = clients.values()
            (loop,) = natives._of_loop
            assert loop.is_closed()


def test_stores_and_tasks_that_begin_together_share_one_client(clients: Clients) -> None:
    async def together() -> None:
        await asyncio.gather(*(AsyncAwsClient(info_of(running), DEADLINE_S).call(READ) for _ in range(4)))

    with service(answer("200 OK")) as running:
        asyncio.run(together())
        for _ in range(2):
            send(info_of(running), READ)
        (natives,) = clients.values()
        assert (len(natives._of_loop), len(natives._of_timeout)) == (1, 1)


def test_a_cancelled_call_ends_at_once() -> None:
    async def cancel() -> None:
        task = asyncio.ensure_future(AsyncAwsClient(info, DEADLINE_S).call(READ))
        await wait_until_async(lambda: running.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with service(None) as running:
        info = info_of(running)
        asyncio.run(cancel())


class Interrupted(Exception):  # noqa: N818 - what a handler raises
    pass


@pytest.fixture
def handler() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise Interrupted

    former = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, former)


def test_what_a_signal_handler_raises_reaches_the_caller_and_breaks_no_later_call(handler: None) -> None:
    """Botocore turns any exception inside a request into one of its own."""
    with service(None, answer("200 OK")) as running:
        info = info_of(running)

        def interrupt() -> None:
            wait_until(lambda: running.requests)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        other = threading.Thread(target=interrupt)
        other.start()
        with pytest.raises(Interrupted):
            send(info, READ)
        other.join()
        send(info, READ)


def test_h10_a_thread_interrupted_anywhere_in_a_call_breaks_no_later_call() -> None:
    """urllib3's pool of connections takes its lock in Python code: an exception there would leave it taken."""
    files = ("/urllib3/", "/botocore/", "/queue.py", "/threading.py", "/stores/")
    with service(answer("200 OK")) as running:
        info, ended = info_of(running), threading.Event()

        def interrupt() -> None:
            for place in count():
                with suppress(*INTERRUPTS), interrupted_at(place, *files) as interruption:
                    send(info, READ)
                send(info, READ)
                if not interruption.has_come:
                    ended.set()
                    return

        threading.Thread(target=interrupt, daemon=True).start()
        assert ended.wait(DEADLINE_S)


def test_a_forked_child_has_connections_of_its_own() -> None:
    with service(answer("200 OK")) as running:
        info = info_of(running)
        send(info, READ)
        child = os.fork()
        if child == 0:
            try:
                send(info, READ)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert len(running._held) == 2
        send(info, READ)
        assert len(running._held) == 2


def test_no_client_is_made_for_a_store_that_is_not_used(clients: Clients) -> None:
    info = parse_dynamodb_url("dynamodb://eu-central-1/locks")
    AwsClient(info, DEADLINE_S)
    AsyncAwsClient(info, DEADLINE_S)
    assert clients == {}


@pytest.mark.parametrize("url", ["dynamodb://eu-central-1/locks", "s3://bucket/jobs?region=eu-central-1"])
def test_h2_a_renewal_waits_long_enough_for_a_region_far_away(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_s: list[float] = []
    monkeypatch.setattr(documents, "AwsClient", lambda _, timeout_s: asked_s.append(timeout_s))
    source = source_store(url)
    for timeout_s in (REQUEST_TIMEOUT_S, 5.0):
        source.connect(request_timeout_s=timeout_s)
    assert asked_s == [MIN_TIMEOUT_S, 5.0]
