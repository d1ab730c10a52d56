"""Tokens that others get while an epoch is raised are below those of the new history."""

import pytest

from fencelock.model import EPOCH_STRIDE
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.source import admin
from fencelock.stores.etcd.source.layout import encode_record
from tests.etcd.clients import Client, installed
from tests.etcd.fix_etcd import Corner


def test_t7_a_raise_leaves_room_for_what_is_granted_meanwhile(etcd: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    record = installed(etcd.url).ask(ask.ReadSource())
    floor = 10**6 * EPOCH_STRIDE - 2
    value = encode_record(record.source_id, 2, record.history_id, floor).decode()
    etcd.cluster.ctl("put", f"{etcd.prefix}/.fencelock/source/record", value)
    operator, other = Client(etcd.url), Client(etcd.url)
    start, tokens = admin.start_of_new_history, []

    def grant_first(highest: int) -> int:
        tokens.extend(other.token(f"lock-{number}") for number in range(9))
        return start(highest)

    monkeypatch.setattr(admin, "start_of_new_history", grant_first)
    operator.ask(ask.RaiseEpoch(record.history_id, "a test"))
    assert Client(etcd.url).token("later") > max(tokens)
