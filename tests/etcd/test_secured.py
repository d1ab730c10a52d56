"""TLS by the URL's files, a user who may only touch one prefix, and secrets that are never displayed."""

import logging
from typing import Any

import pytest

import fencelock
from fencelock.errors import ConfigError, SourceError, SourceUnavailableError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection import client as etcd_client
from fencelock_lab.servers.etcd import EtcdCluster, EtcdFleet
from tests.etcd.clients import Client, installed
from tests.etcd.fix_tls import ROOT, TlsMember
from tests.etcd.test_restores import is_answered
from tests.support.helpers import wait_until

PASSWORD = "p%40ss%2Fword"


def test_tls_with_a_clients_certificate(tls_etcd: TlsMember):
    url = tls_etcd.url(ca="authority.crt", cert="client.crt", key="client.key")
    fencelock.connect(url).install()
    with fencelock.connect(url) as source, source.lock("lock") as lease:
        assert lease.token
        assert "client.key" not in source.url


@pytest.mark.parametrize(
    "files", [{}, {"ca": "other.crt"}, {"ca": "authority.crt"}], ids=["plain", "wrong authority", "no certificate"]
)
def test_a_connection_that_is_not_trusted_is_refused(tls_etcd: TlsMember, files: dict[str, str]):
    url = tls_etcd.url(**files) if files else tls_etcd.cluster.url("app")
    with pytest.raises(SourceError) as caught:
        Client(url, request_timeout_s=3.0).describe()
    assert isinstance(caught.value, SourceUnavailableError) or not caught.value.definite


def test_the_systems_authorities_are_trusted_unless_the_url_names_one(
    tls_etcd: TlsMember, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_etcd.folder / "authority.crt"))
    mine = {"cert": "client.crt", "key": "client.key"}
    installed(tls_etcd.url(**mine))
    with pytest.raises(SourceError):
        Client(tls_etcd.url(ca="other.crt", **mine), request_timeout_s=3.0).describe()


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match="/nowhere"):
        Client("etcd://127.0.0.1:1?ca=/nowhere").describe()


def app_url(cluster: EtcdCluster, prefix: str = "app") -> str:
    return cluster.url(prefix, login=f"app:{PASSWORD}")


def test_a_user_of_one_prefix_can_do_everything_a_source_does(guarded_etcd: EtcdCluster):
    client = installed(app_url(guarded_etcd))
    claim = draw_claim()
    client.token("lock", claim)
    assert client.ask(ask.Renew((("lock", claim),))).remaining_ms
    assert client.ask(ask.Inspect("lock")).is_held
    assert client.ask(ask.ListLocks(None))
    client.ask(ask.Break("lock", draw_claim(), "an operator", "a test"))
    assert client.raise_epoch("a test").epoch == 2
    client.one_token()
    assert client.ask(ask.Purge()) == 1


def test_waiters_of_a_user_are_notified(guarded_etcd: EtcdCluster):
    url = app_url(guarded_etcd)
    fencelock.connect(url).install()
    with fencelock.connect(url) as source, fencelock.connect(url) as other:
        held = source.lock("lock").acquire()
        assert held is not None
        held.release_soon()
        with other.lock("lock", timeout=30.0) as lease:
            assert lease.token > held.token


def test_another_prefix_is_not_permitted(guarded_etcd: EtcdCluster):
    with pytest.raises(SourceError, match="does not permit") as caught:
        Client(app_url(guarded_etcd, "other")).describe()
    assert caught.value.definite


@pytest.mark.parametrize(
    ("login", "message"), [("", "user and password into the URL"), ("app:wrong-one", "refused the URL's user")]
)
def test_a_login_that_is_missing_or_wrong_says_so_without_the_password(
    guarded_etcd: EtcdCluster, login: str, message: str
):
    with pytest.raises(SourceError, match=message) as caught:
        Client(guarded_etcd.url("app", login=login)).describe()
    assert caught.value.definite
    assert "wrong-one" not in str(caught.value)


def test_a_login_where_etcd_knows_none_says_what_to_leave_out(etcd_fleet: EtcdFleet):
    with pytest.raises(SourceError, match=r"authentication is not enabled\): leave user and password out") as caught:
        Client(etcd_fleet.shared(1).url("app", login="app:wrong-one")).describe()
    assert caught.value.definite
    assert "wrong-one" not in str(caught.value)


def test_a_token_that_etcd_has_forgotten_is_renewed(guarded_etcd: EtcdCluster):
    """A member keeps tokens in memory: after a restart it knows none of them."""
    client = installed(app_url(guarded_etcd))
    token = client.one_token()
    guarded_etcd.crash()
    wait_until(lambda: is_answered(client))  # The connection's end comes first.
    assert client.one_token() > token


def test_a_member_that_is_down_is_passed_over_before_the_login_too(guarded_etcd: EtcdCluster):
    _, _, hosts = app_url(guarded_etcd).partition("@")
    assert installed(f"etcd://app:{PASSWORD}@127.0.0.1:1,{hosts}").one_token()


def test_a_login_that_becomes_old_twice_within_a_call_is_renewed_twice(guarded_etcd: EtcdCluster, monkeypatch):
    """Operators create a role and then a user, and each of the two invalidates the logins before it."""
    client = installed(app_url(guarded_etcd))
    log_in, changes = etcd_client.EtcdClient._log_in, iter([("disable", ROOT), ("enable", None)])

    def change_auth_and_log_in(self: etcd_client.EtcdClient, *terms: Any) -> Any:
        login = yield from log_in(self, *terms)
        for word, user in changes:
            guarded_etcd.ctl("auth", word, user=user)
        return login

    monkeypatch.setattr(etcd_client.EtcdClient, "_log_in", change_auth_and_log_in)
    guarded_etcd.ctl("auth", "disable", user=ROOT)
    guarded_etcd.ctl("auth", "enable")
    assert client.one_token()


def test_h2_a_key_is_watched_even_after_the_streams_login_has_ended(
    guarded_etcd: EtcdCluster,
):
    """A stream of watches keeps its first login, and etcd watches nothing more for a login that has ended."""
    client = installed(app_url(guarded_etcd))
    first, second = ("first", draw_claim()), ("second", draw_claim())
    client.token(*first)
    client.ask(ask.Renew((first,)))
    wait_until(lambda: guarded_etcd.servers[0].metrics().get("etcd_debugging_mvcc_watcher_total"))
    guarded_etcd.ctl("auth", "disable", user=ROOT)
    guarded_etcd.ctl("auth", "enable")
    client.token(*second)
    client.ask(ask.Renew((first, second)))
    guarded_etcd.ctl("del", "--prefix", "app/second/", user=ROOT)
    lost = wait_until(lambda: client.ask(ask.Renew((first, second))).lost)
    assert lost == {second[1]: "its key in etcd was deleted"}


def test_neither_claims_nor_passwords_are_shown(guarded_etcd: EtcdCluster, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    client = installed(app_url(guarded_etcd))
    claim = draw_claim()
    client.token("lock", claim)
    guarded_etcd.ctl("del", "--prefix", "app/lock/", user=ROOT)
    lost = client.ask(ask.Renew((("lock", claim),))).lost
    shown = " ".join([repr(client.store.info), repr(client.store), client.store.url, *lost.values(), caplog.text])
    assert claim not in shown
    assert "p@ss" not in shown
