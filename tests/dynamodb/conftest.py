"""What surrounds every test of this store."""

from tests.dynamodb.fix_dynamodb import corner

__all__ = ["corner"]
