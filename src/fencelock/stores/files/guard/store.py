"""The guard of a local folder: marks beside the files, and one commit under a lock that compares them.

Promise: the constructor opens nothing. Network file systems are refused: their locks do not hold across machines, or
are lost. The system itself refuses nobody who may write the folder: permissions have to, and `examine` reports where
they do not.
Limit: a holder that is frozen *in the middle* of a commit holds the others up until it goes on or dies.
"""

import os
import shlex
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote

from fencelock.errors import ConfigError
from fencelock.model import Finding
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.files.guard.block import MAX_FILES, FilesTransaction
from fencelock.stores.files.guard.codec import FilesGuardCodec
from fencelock.stores.files.guard.commit import FolderClient
from fencelock.stores.files.guard.inspection import check_filesystem, examine
from fencelock.stores.files.guard.layout import HOME, name_parts
from fencelock.stores.optimistic.connection import OptimisticConnection

_SCHEME = "file://"
_POLICY = """\
# user {role!r} may write resource {resource!r} of lock {lock!r}, and the marks of all resources there
mkdir -p -- {folder} {home}
chown -R -- {user} {folder} {home}
chmod -R -- u+rwX,go-w {folder}
chmod -R -- u+rwX,go= {home}"""


class FilesGuard:
    """A guarded folder."""

    capabilities = GuardCapabilities(
        enforced_by="policy",
        spans_resources=False,
        keeps_open=False,
        first_seal_creates=False,
        max_writes=MAX_FILES,
    )

    def __init__(self, url: str) -> None:
        self.path = Path(os.path.realpath(path_of(url)))
        self.url = _SCHEME + quote(str(self.path))
        self._folder = FolderClient(self.url, self.path)

    def connect(self) -> OptimisticConnection[FilesGuardCodec]:
        """Return a connection; it opens the folder for each of its requests, and keeps open what a block has read."""
        codec = FilesGuardCodec(self.url, partial(FilesTransaction, self.path))
        return OptimisticConnection(codec, self._folder.perform)

    def install(self) -> None:
        """Do nothing: `protect` creates what a resource needs."""

    def policy(self, resource: str, lock: str, *roles: str) -> str:
        """Return the commands that let this user of the system, and no other, write one resource and all marks."""
        if len(roles) != 1:
            raise ConfigError(
                f"the files of {self.path} belong to one user of the system: name one role, the user of the application"
            )
        folder, home = (self.path.joinpath(*parts) for parts in (name_parts(resource), HOME))
        return _POLICY.format(
            role=roles[0],
            user=shlex.quote(roles[0]),
            resource=resource,
            lock=lock,
            folder=_quoted(folder),
            home=_quoted(home),
        )

    def prove(self) -> None:
        """Raise UnsupportedError unless locks and renames work on this folder's file system as they have to."""
        check_filesystem(self.path)

    def examine(self) -> list[Finding]:
        """Report a file system that loses the marks, and folders that others than their owner may write."""
        return examine(self.path, self._folder, self.connect())


def path_of(url: str) -> str:
    """Return the folder in a URL; ConfigError if it names none."""
    rest = url[len(_SCHEME) :]
    if not rest.startswith("/") or "?" in rest or "#" in rest:
        raise ConfigError(
            "the URL names no folder: write file:// and an absolute path, such as file:///srv/reports, with %3F for ? "
            "and %23 for #"
        )
    path = unquote(rest)
    if "\0" in path:
        raise ConfigError("the URL names no folder: a path contains no NUL")
    return path


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
