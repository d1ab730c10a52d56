"""The etcd guard keeps every rule, synchronously and on the event loop, on one member and on three."""

from typing import Any

import pytest

from fencelock import OutcomeUnknownError
from fencelock.stores.etcd.connection.client import EtcdClient
from fencelock.stores.etcd.guard.transactions import AsyncEtcdTransaction, EtcdTransaction
from fencelock.testing import AsyncGuardConformance, GuardConformance
from fencelock_lab.servers.etcd import EtcdFleet
from tests.etcd.fix_etcd import THREE, Corner, fresh_corner
from tests.etcd.guarded import Direct


class InRange:
    """A fresh prefix for each check. A value is a key of the resource `r`, which is what the checks write to."""

    size = 1
    compares_reads = True
    is_async: bool
    corner: Corner
    direct: Direct

    def setup_method(self) -> None:
        """The member comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_range(self, etcd_fleet: EtcdFleet) -> None:
        self.corner = fresh_corner(etcd_fleet, self.size)
        self.direct = Direct(self.corner.url)
        super().setup_method()

    def make_url(self) -> str:
        return self.corner.url

    def dump(self) -> bytes:
        return self.corner.dump()

    def key(self, table: str, key: str) -> str:
        return f"{self.corner.prefix}/r/{table}/{key}"

    def put(self, native: EtcdTransaction, table: str, key: str, value: str) -> None:
        native.put(self.key(table, key), value)

    def read(self, native: EtcdTransaction, table: str, key: str) -> str | None:
        value = native.get(self.key(table, key))
        return None if value is None else value.decode()

    def wire(self) -> tuple[Any, str]:
        return EtcdClient, "call_async" if self.is_async else "call"

    def lost_reply(self) -> Exception:
        return OutcomeUnknownError("the answer was lost on purpose")

    def put_alone(self, table: str, key: str, value: str) -> None:
        self.direct.put(self.key(table, key), value)

    def get(self, table: str, key: str) -> str | None:
        return self.direct.get(self.key(table, key))


class TestEtcdGuard(InRange, GuardConformance):
    pass


class TestAsyncEtcdGuard(InRange, AsyncGuardConformance):
    async def put_async(self, native: AsyncEtcdTransaction, table: str, key: str, value: str) -> None:
        native.put(self.key(table, key), value)


@pytest.mark.campaign
class TestEtcdGuardOnThree(InRange, GuardConformance):
    size = THREE
