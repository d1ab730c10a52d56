"""What surrounds every test of this store."""

from tests.dynamodb.fix_dynamodb import corner
from tests.dynamodb.fix_source import empty_table, locks, ministack_proxy

__all__ = ["corner", "empty_table", "locks", "ministack_proxy"]
