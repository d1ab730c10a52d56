"""The rule G13 at etcd: an effect outside of it has an intent before it and a result after it."""

import pytest

from tests.etcd.fix_etcd import Corner
from tests.support.effects import Effects


class TestEffects(Effects):
    @pytest.fixture
    def effects_url(self, etcd: Corner) -> str:
        return etcd.url
