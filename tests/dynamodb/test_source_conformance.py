"""The source in DynamoDB keeps every rule, over threads and over aiobotocore.

The holders' clock and the dates of the replies are moved by hand, so that no check depends on how fast the machine is.
"""

import pytest

from fencelock.stores.dynamodb.source.store import DynamoDBSource
from fencelock.testing import AsyncSourceConformance, SourceConformance
from fencelock.testing.clock import ManualClock
from tests.dynamodb.fix_source import Locks
from tests.support.moved_dates import moved


class InDynamoDB:
    """A table of its own for each check."""

    many_names = 30

    def setup_method(self) -> None:
        """The table comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_dynamodb(self, locks: Locks) -> None:
        self.locks = locks
        self.clock = ManualClock()
        super().setup_method()

    def make_url(self) -> str:
        return self.locks.url

    def make_store(self, url: str) -> DynamoDBSource:
        return moved(DynamoDBSource, url, self.clock.now_us)

    def dump(self) -> bytes:
        return repr(self.locks.items()).encode()


class TestDynamoDBSource(InDynamoDB, SourceConformance):
    pass


@pytest.mark.campaign
class TestAsyncDynamoDBSource(InDynamoDB, AsyncSourceConformance):
    pass
