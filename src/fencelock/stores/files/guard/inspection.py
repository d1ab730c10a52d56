"""What breaks the guarantees of a guard of a folder: file systems that it refuses, and what `fencelock doctor` finds.

Promise: nothing is written.
"""

import os
import stat
from pathlib import Path

from fencelock.errors import FencelockError, UnsupportedError
from fencelock.model import Finding
from fencelock.protocol.guard_requests import InspectResources
from fencelock.stores.errors import refused_finding
from fencelock.stores.files.guard.codec import FilesGuardCodec
from fencelock.stores.files.guard.commit import FolderClient
from fencelock.stores.files.guard.layout import HOME, ReadValues, name_parts
from fencelock.stores.filesystems import (
    NETWORK_FILESYSTEMS,
    UNJOURNALED_FILESYSTEMS,
    VOLATILE_FILESYSTEMS,
    filesystem_of,
    mounted_inside,
)
from fencelock.stores.optimistic.connection import OptimisticConnection

_OTHERS_WRITE = 0o022
_FUSE = "fuse"


def check_filesystem(path: Path) -> None:
    """Raise UnsupportedError unless locks and renames work on the folder's file system as they have to."""
    kind = filesystem_of(path)
    if kind in NETWORK_FILESYSTEMS or kind.startswith(_FUSE) or not kind:
        shown = f"on a file system of type {kind}" if kind else "on a file system that cannot be told"
        raise UnsupportedError(
            f"{path} is {shown}, where a lock does not keep out every other writer: guard a folder on a local "
            f"disk of Linux (ext4, XFS, Btrfs), or keep the data in a store that compares the mark itself"
        )
    if kind in UNJOURNALED_FILESYSTEMS:
        raise UnsupportedError(
            f"{path} is on a file system of type {kind}, which has no journal: a power cut may leave half of "
            f"a rename there. Guard a folder on ext4, XFS or Btrfs"
        )
    if _folds_case(path.joinpath(*HOME)):
        raise UnsupportedError(
            f"{path} is on a file system that takes names for one which differ in case only, so that two resources, or "
            f"two keys of `once`, could be one: guard a folder where they differ (chattr -F on an empty folder)"
        )
    if inside := mounted_inside(path):
        raise UnsupportedError(
            f"{inside[0]} is mounted inside {path}, and nothing can be renamed across a mount point: guard a "
            f"folder without one"
        )


def _folds_case(home: Path) -> bool:
    """Return whether a folder of the guard's own, once it is there, is found by its name in capitals too."""
    try:
        return os.path.samestat(os.lstat(home), os.lstat(home.with_name(home.name.upper())))
    except FileNotFoundError:
        return False


def examine(path: Path, client: FolderClient, connection: OptimisticConnection[FilesGuardCodec]) -> list[Finding]:
    """Return what is wrong with the set-up."""
    findings = []
    try:
        check_filesystem(path)
        client.perform(ReadValues(()))
        report = connection.perform(InspectResources(None))
    except FencelockError as error:
        return [refused_finding("guard-refused", error)]
    kind = filesystem_of(path)
    if kind in VOLATILE_FILESYSTEMS:
        message = f"{path} is on {kind}: a reboot loses the files, and the marks with them"
        findings.append(Finding("volatile-filesystem", message, "guard a folder on a disk that survives a reboot"))
    folders = [
        path,
        path.joinpath(*HOME),
        *(path.joinpath(*name_parts(mark.resource)) for mark in report.marks),
    ]
    return findings + [_open_to_all(folder) for folder in folders if _is_open(folder)]


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
