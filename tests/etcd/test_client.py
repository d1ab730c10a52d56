"""The client speaks to the members of a URL, changes to the next when one fails, and reports truly what was not
done.
"""

import asyncio
import gc
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

import fencelock
from fencelock.errors import ConfigError, OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import PROBE_S, RANGE, STATUS, TXN, EtcdClient
from fencelock.stores.etcd.connection.url import parse_url
from fencelock.stores.etcd.source.store import EtcdSource
from fencelock_lab.servers.etcd import EtcdCluster
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import check_is_quick, wait_until

REQUEST_TIMEOUT_S = 5.0
SHORT_S = 0.3
SLACK_S = 1.0
"""A connection that gRPC waits for costs 2 s."""


def test_a_url_names_members_a_prefix_a_login_and_files():
    info = parse_url("etcd://me:p%40ss@one:1,two,[::1]:3/a%20b/c/?ca=/ca&cert=/cert&key=/key")
    assert info.endpoints == ("one:1", "two:2379", "[::1]:3")
    assert info.prefix == b"a b/c/"
    assert (info.user, info.password) == ("me", "p@ss")
    assert info.tls == ("/ca", "/cert", "/key")
    assert info.url == "etcd://one:1,two:2379,[::1]:3/a%20b/c"
    assert "p@ss" not in repr(info)


def test_a_url_without_more_names_no_prefix_no_login_and_no_tls():
    assert parse_url("etcd://one")[1:5] == (b"", None, None, None)
    assert parse_url("etcd://one?tls=true").tls == (None, None, None)
    assert parse_url("etcd://one?tls=false").tls is None
    assert parse_url("etcd://one?cert=/both").tls == (None, "/both", None)


@pytest.mark.parametrize(
    "url",
    [
        "etcd://", "etcd:///prefix", "etcd://a:b:c,", "etcd://user@a", "etcd://:password@a", "etcd://a:port",
        "etcd://a?tls=on", "etcd://a?key=x", "etcd://a?timeout=3", "etcd://h:99999", "etcd://h:0", "etcd://a:b:1",
        "etcd://a?tls=false&ca=x", "etcd://[::1/p", "etcd://::1]:2379", "etcd://[]", "etcd://user:password/x@a",
    ],
)  # fmt: skip
def test_a_url_that_is_not_understood_is_refused_without_its_password(url):
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert "password" not in str(caught.value).replace("user:password@host", "").replace("without a password", "")


def test_a_transaction_is_done_in_threads_and_on_loops_alike(etcd: Corner):
    client = EtcdClient(parse_url(etcd.url))
    key = f"{etcd.prefix}/key".encode()
    first = client.call(TXN, wire.txn([wire.is_absent(key)], [wire.put(key, b"1")]), REQUEST_TIMEOUT_S)
    assert first.succeeded

    async def again():
        return await client.call_async(TXN, wire.txn([wire.is_absent(key)], [], [wire.get(key)]), REQUEST_TIMEOUT_S)

    for _ in range(2):  # Each on a loop of its own.
        found = asyncio.run(again())
        assert not found.succeeded
        assert found.responses[0].response_range.kvs[0].create_revision == first.header.revision


def test_a_member_that_is_down_is_passed_over(etcd: Corner):
    hosts = f"127.0.0.1:1,{etcd.cluster.servers[0].address}"
    client = EtcdClient(parse_url(f"etcd://{hosts}"))
    assert client.call(RANGE, wire.RangeRequest(key=b"x"), REQUEST_TIMEOUT_S).header.revision


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers, as a frozen one does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_first_member_that_is_silent_costs_one_probe(etcd: Corner, silent: str, is_async: bool):
    request = wire.RangeRequest(key=b"x")

    def call_anew() -> None:
        client = EtcdClient(parse_url(f"etcd://{silent},{etcd.cluster.servers[0].address}"))
        if is_async:
            assert asyncio.run(client.call_async(RANGE, request, REQUEST_TIMEOUT_S)).header.revision
        else:
            assert client.call(RANGE, request, REQUEST_TIMEOUT_S).header.revision

    check_is_quick(call_anew, PROBE_S + SLACK_S)


def test_silent_members_cost_no_more_than_the_timeout(silent: str):
    def fail() -> None:
        client = EtcdClient(parse_url(f"etcd://{silent},{silent},{silent}"))
        with pytest.raises(SourceError):
            client.call(RANGE, wire.RangeRequest(key=b"x"), SHORT_S)

    check_is_quick(fail, SHORT_S + SLACK_S)


def test_a_login_that_is_not_answered_is_a_definite_error_because_the_request_was_not_sent(silent: str):
    request, unsent = wire.RangeRequest(key=b"x"), "did not log this client in, so the request was not sent"
    client = EtcdClient(parse_url(f"etcd://app:word@{silent}"))
    with pytest.raises(SourceUnavailableError, match=unsent):
        client.call(RANGE, request, SHORT_S)
    with pytest.raises(SourceUnavailableError, match=unsent):
        asyncio.run(client.call_async(RANGE, request, SHORT_S))
    with pytest.raises(OutcomeUnknownError):
        EtcdClient(parse_url(f"etcd://{silent}")).call(RANGE, request, SHORT_S)


def test_a_login_that_takes_all_of_the_time_leaves_the_request_unsent():
    attempts = EtcdClient(parse_url("etcd://app:word@127.0.0.1:1"))._attempts(RANGE, wire.RangeRequest(key=b"x"), 0.05)
    login = next(attempts)
    assert login.method is not RANGE
    time.sleep(login.request_timeout_s + 0.01)
    with pytest.raises(SourceUnavailableError, match="the request was not sent"):
        attempts.send(wire.AuthenticateResponse(token="late"))


def test_a_request_has_the_time_that_its_login_has_left():
    attempts = EtcdClient(parse_url("etcd://app:word@127.0.0.1:1"))._attempts(RANGE, wire.RangeRequest(key=b"x"), 5.0)
    login = next(attempts)
    time.sleep(0.1)
    request = attempts.send(wire.AuthenticateResponse(token="in time"))
    assert request.method is RANGE
    assert request.request_timeout_s <= login.request_timeout_s - 0.1


def test_an_unreachable_member_is_a_definite_error():
    with pytest.raises(SourceUnavailableError) as caught:
        EtcdClient(parse_url("etcd://127.0.0.1:1,127.0.0.1:2")).call(STATUS, wire.StatusRequest(), REQUEST_TIMEOUT_S)
    assert caught.value.definite


def test_an_unresolvable_name_is_a_definite_error_and_the_next_member_is_asked(etcd: Corner):
    with pytest.raises(SourceUnavailableError, match="cannot be reached") as caught:
        EtcdClient(parse_url("etcd://nohost.invalid/p")).call(STATUS, wire.StatusRequest(), REQUEST_TIMEOUT_S)
    assert caught.value.definite
    client = EtcdClient(parse_url(f"etcd://nohost.invalid,{etcd.cluster.servers[0].address}"))
    assert client.call(STATUS, wire.StatusRequest(), REQUEST_TIMEOUT_S).version


def test_a_frozen_member_leaves_the_outcome_unknown_and_the_next_call_goes_elsewhere(own_etcd_three: EtcdCluster):
    client = EtcdClient(parse_url(own_etcd_three.url()))
    follower = next(server for server in own_etcd_three.servers if not server.is_leader())
    wait_until(lambda: client.call(STATUS, wire.StatusRequest(), REQUEST_TIMEOUT_S).version)
    while own_etcd_three.servers[client._member] is not follower:
        client._switch_member(client._member)
    client.call(RANGE, wire.RangeRequest(key=b"x"), REQUEST_TIMEOUT_S)
    follower.freeze()
    with pytest.raises(OutcomeUnknownError):
        client.call(RANGE, wire.RangeRequest(key=b"x"), SHORT_S)
    assert client.call(RANGE, wire.RangeRequest(key=b"x"), REQUEST_TIMEOUT_S).header.revision


def test_a_collected_source_leaves_no_connection(own_etcd: EtcdCluster):
    """A process that makes a source and a guard for each of its jobs does not run out of descriptors."""
    EtcdSource(own_etcd.url("locks")).install()
    port = own_etcd.servers[0].port

    def connections() -> int:
        gc.collect()
        found = psutil.Process().net_connections(kind="tcp")
        return sum(bool(one.raddr) and one.raddr.port == port for one in found)

    for _ in range(5):
        with fencelock.connect(own_etcd.url("locks")) as source, source.lock("a", ttl=5.0) as lease:
            fencelock.guard(own_etcd.url("data"), resource="r", lock="a").seal(lease)
    del source, lease
    wait_until(lambda: connections() == 0)
