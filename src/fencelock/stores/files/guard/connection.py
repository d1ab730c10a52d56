"""A guard's connection to a folder: nothing stays open between two requests but the files that a block has read.

Promise: it sends the operations of `codec.py`, and nothing else. After a failure nothing is pending.
"""

from typing import Any

from fencelock.errors import GuardError
from fencelock.protocol.generators import run_generator
from fencelock.stores.files.guard.block import FilesTransaction
from fencelock.stores.files.guard.codec import FilesGuardCodec
from fencelock.stores.files.guard.commit import Folder


class FilesGuardConnection:
    """Answers a guard's requests, for one thread at a time."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._codec = FilesGuardCodec(folder.url, lambda *args: FilesTransaction(folder.path, *args))

    @property
    def native(self) -> Any:
        """The object that `guard.transaction` yields."""
        return self._codec.work

    def perform(self, request: Any) -> Any:
        """Answer one request; after a failure nothing is pending."""
        try:
            return run_generator(self._codec.operations(request), self._folder.perform)
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        """Discard the pending writes."""
        self._codec.forget()

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return None: an error that leaves a block is a FencelockError already, or the user's own."""
        return None

    def close(self) -> None:
        """Discard the pending writes."""
        self._codec.forget()
