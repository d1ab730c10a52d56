"""Resources behind an HTTP service: each one is a text at a URL below the guard's, to which every write adds a line.

Promise: nothing is asked of the service but `GET` and `PUT` of a text, with the fields of docs/reference/http.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from fencelock_lab.campaigns.http_client import HTTPTexts
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.target import Proof, TargetState
from fencelock_lab.campaigns.text_target import TextTarget


class HTTPTarget(TextTarget):
    """The resource of one lock, as a text of a service."""

    def __init__(self, settings: CampaignSettings, number: int) -> None:
        self._service = HTTPTexts(settings.guard)
        super().__init__(settings, number, self._service)

    @contextmanager
    def writing(self, proof: Proof, resource: str, seen: TargetState, name: str, token: int) -> Iterator[None]:
        """Write the text that was read with one more line; the block runs in the middle of the request."""
        with self._service.writing(proof, resource, self._next_text(resource, seen, name, token)):
            yield

    def write_unfenced(self, resource: str) -> None:
        """Empty the text without a token; UnfencedWriteError if the service refuses that."""
        self._service.write_unfenced(resource)
