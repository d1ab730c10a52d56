"""The guard of a local folder: marks beside the files, and one commit under a lock that compares them.

Promise: the constructor opens nothing. Network file systems are refused: their locks do not hold across machines, or
are lost. The system itself refuses nobody who may write the folder: permissions have to, and `examine` reports where
they do not.
Limit: a holder that is frozen *in the middle* of a commit holds the others up until it goes on or dies.
"""

import os
import shlex
import stat
from pathlib import Path
from urllib.parse import quote, unquote

from fencelock.errors import ConfigError, FencelockError, UnsupportedError
from fencelock.model import Finding
from fencelock.protocol.guard_requests import InspectResources
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.files.guard.block import MAX_FILES
from fencelock.stores.files.guard.commit import Folder
from fencelock.stores.files.guard.connection import FilesGuardConnection
from fencelock.stores.files.guard.layout import HOME, ReadValues, name_parts
from fencelock.stores.filesystems import (
    NETWORK_FILESYSTEMS,
    UNJOURNALED_FILESYSTEMS,
    VOLATILE_FILESYSTEMS,
    filesystem_of,
    mounted_inside,
)

_SCHEME = "file://"
_POLICY = """\
# user {role!r} may write resource {resource!r} of lock {lock!r}, and the marks of all resources there
mkdir -p -- {folder} {home}
chown -R -- {user} {folder} {home}
chmod -R -- u+rwX,go-w {folder}
chmod -R -- u+rwX,go= {home}"""
_OTHERS_WRITE = 0o022
_FUSE = "fuse"


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
        self._folder = Folder(self.url, self.path)

    def connect(self) -> FilesGuardConnection:
        """Return a connection; it opens the folder for each of its requests."""
        return FilesGuardConnection(self._folder)

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
        kind = filesystem_of(self.path)
        if kind in NETWORK_FILESYSTEMS or kind.startswith(_FUSE) or not kind:
            shown = f"on a file system of type {kind}" if kind else "on a file system that cannot be told"
            raise UnsupportedError(
                f"{self.path} is {shown}, where a lock does not keep out every other writer: guard a folder on a local "
                f"disk of Linux (ext4, XFS, Btrfs), or keep the data in a store that compares the mark itself"
            )
        if kind in UNJOURNALED_FILESYSTEMS:
            raise UnsupportedError(
                f"{self.path} is on a file system of type {kind}, which has no journal: a power cut may leave half of "
                f"a rename there. Guard a folder on ext4, XFS or Btrfs"
            )
        if inside := mounted_inside(self.path):
            raise UnsupportedError(
                f"{inside[0]} is mounted inside {self.path}, and nothing can be renamed across a mount point: guard a "
                f"folder without one"
            )

    def examine(self) -> list[Finding]:
        """Report a file system that loses the marks, and folders that others than their owner may write."""
        findings = []
        try:
            self.prove()
            self._folder.perform(ReadValues(()))
            report = self.connect().perform(InspectResources(None))
        except FencelockError as error:
            return [Finding("guard-refused", str(error), "do what the message says, then run doctor again")]
        kind = filesystem_of(self.path)
        if kind in VOLATILE_FILESYSTEMS:
            message = f"{self.path} is on {kind}: a reboot loses the files, and the marks with them"
            findings.append(Finding("volatile-filesystem", message, "guard a folder on a disk that survives a reboot"))
        folders = [
            self.path,
            self.path.joinpath(*HOME),
            *(self.path.joinpath(*name_parts(mark.resource)) for mark in report.marks),
        ]
        return findings + [_open_to_all(folder) for folder in folders if _is_open(folder)]


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


def _is_open(folder: Path) -> bool:
    try:
        return bool(stat.S_IMODE(os.stat(folder).st_mode) & _OTHERS_WRITE)
    except OSError:
        return False


def _open_to_all(folder: Path) -> Finding:
    return Finding(
        "open-to-all",
        f"{folder} can be written by other users than its owner, with or without a token: the system itself refuses "
        f"nobody who may write there",
        f"give the folder to the user of the application that uses the guard alone: chmod go-w {folder}",
    )
