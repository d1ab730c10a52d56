"""The source of tokens in a table of DynamoDB: the source in documents, over the clients of AWS.

Promise: the constructor opens nothing. A table that was restored from a backup is another table, with another id, so it
is noticed: no token is granted until an operator raises the epoch. Leases are dated by the headers of DynamoDB's
replies, to the second; no condition reads a clock.
Never: a table installed whose items DynamoDB deletes by itself, or changes from another region.
"""

from typing import Any

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.protocol.generators import run_generator
from fencelock.stores.aws.clients import AwsClient
from fencelock.stores.aws.documents import AwsDocumentSource
from fencelock.stores.aws.url import parse_dynamodb_url
from fencelock.stores.document.store import INSTALL_S
from fencelock.stores.dynamodb.source.documents import DynamoDocuments
from fencelock.stores.dynamodb.source.policy import source_policy
from fencelock.stores.dynamodb.table import DynamoTables, create_table
from fencelock.stores.errors import SOURCE_PART, refused_finding
from fencelock.stores.pauses import pausing


class DynamoDBSource(AwsDocumentSource):
    """A source of tokens in one table. The constructor opens nothing."""

    def __init__(self, url: str, **options: Any) -> None:
        info = parse_dynamodb_url(url)
        super().__init__(info, DynamoDocuments(info.target, info.url), **options)

    def create_location(self) -> None:
        """Create the table, unless it exists, and check that it is fit to keep locks."""
        run_generator(create_table(self._tables()), pausing(AwsClient(self.info, INSTALL_S).call))

    def examine_location(self) -> list[Finding]:
        """Report a table that is not fit to keep locks."""
        try:
            run_generator(self._tables().check_own(), pausing(AwsClient(self.info, INSTALL_S).call))
        except FencelockError as error:
            return [refused_finding("unfit-table", error)]
        return []

    def policy(self, *roles: str) -> str:
        """Return the commands that let these roles take locks, and no more."""
        return "\n".join(source_policy(self.info, role) for role in roles)

    def _tables(self) -> DynamoTables:
        return DynamoTables(self.url, self.info.target, SOURCE_PART)
