"""Ends a process between any two system calls of a guard of files, and looks at what is left.

Run as a program: with a folder, a scenario, a fault of the guard's own ("": none), which calls count (`changes`, or
`every`), and actions. Each point of the scenario gets a fork of its own. There the functions of `os` that the guard
calls count down, and at zero the action happens: the process kills itself (`kill`); the power is cut (`cut BYTES
NAMES`: what was `flushed` is left of them, or `all`); the call fails (`fail ERROR once`), or all later ones too (`fail
ERROR on`). Then another process uses the guard, and the files are judged. It prints as JSON how many points there were,
what was wrong, and how often the scenario ended in which way.
"""

import errno
import fcntl
import json
import os
import shutil
import signal
import sys
from ast import literal_eval
from collections import Counter
from pathlib import Path

import fencelock
from fencelock.protocol import one_way
from fencelock.stores.files.guard import commit, folder

RESOURCE, LOCK = "daily", "nightly"
CHANGES = ("fchmod", "fsync", "ftruncate", "mkdir", "open", "rename", "unlink", "write")
"""The functions through which a guard changes anything."""
LOOKS = ("access", "close", "fdopen", "fstat", "listdir", "pread", "stat")
FAILING = {"open", "fsync", "ftruncate", "mkdir", "rename", "unlink", "write"}


RUN = [0]


def lease(token):
    """Return a lease of this point's own: a process remembers what its leases have sealed."""
    return fencelock.Sequencer(f"source-{RUN[0]}", "history", LOCK, token, one_way(f"claim-{token}"))


def guard_of(base):
    return fencelock.guard(f"file://{base}", resource=RESOURCE, lock=LOCK)


# --- the disk ---------------------------------------------------------------------------------------------------------
class Disk:
    """What of a tree is on the disk for certain: the bytes of each file by its inode, and the names in each folder.

    A rename within the tree reaches the disk with both of its sides, as in the journals of Linux's file systems.
    """

    def __init__(self, base):
        self.base = base
        self.bytes, self.names = look(base)

    def flush(self, descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file():
            self.bytes[path.stat().st_ino] = path.read_bytes()
        elif path.is_dir():
            where, now = str(path.relative_to(self.base)), look(self.base)[1]
            left = set(self.names.get(where, {}).values()) - set(now[where].values())
            arrived = set(now[where].values())
            self._move(left | arrived, now)
            self.names[where] = now[where]

    def _move(self, inodes, now):
        for names in self.names.values():
            for name in [name for name, inode in names.items() if inode in inodes]:
                del names[name]
        for where, names in now.items():
            for name, inode in names.items():
                if inode in inodes and where in self.names:
                    self.names[where][name] = inode

    def state(self, *, all_bytes, all_names):
        """Return the path and the bytes of each file that is left, by whether everything happened to be written."""
        found = look(self.base)
        kept_bytes = {**self.bytes, **found[0]} if all_bytes else self.bytes
        names = found[1] if all_names else self.names
        files = {}
        reached = ["."]
        for where in reached:
            for name, inode in names.get(where, {}).items():
                path = os.path.normpath(os.path.join(where, name))
                if path in names or (self.base / path).is_dir():
                    reached.append(path)
                else:
                    files[path] = kept_bytes.get(inode, b"")
        return files


def look(base):
    contents, names = {}, {}
    for where, folders, files in REAL["walk"](base):
        here = names[os.path.relpath(where, base)] = {}
        for name in (*folders, *files):
            here[name] = REAL["stat"](os.path.join(where, name)).st_ino
        for name in files:
            path = Path(where, name)
            contents[here[name]] = path.read_bytes()
    return contents, names


def rebuild(base, files):
    shutil.rmtree(base)
    base.mkdir()
    for name, content in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# --- the action -------------------------------------------------------------------------------------------------------
REAL = {name: getattr(os, name) for name in (*CHANGES, *LOOKS, "walk")}


class Point:
    """Lets so many calls happen, and then does what was asked for."""

    def __init__(self, base, action, left, counted):
        self.action, self.left = action, left
        self.counted = counted
        self.disk = Disk(base)
        self.calls = 0
        self.is_looking = False

    def watch(self):
        for name in (*CHANGES, *LOOKS) if self.counted == "every" else CHANGES:
            setattr(os, name, self._watched(name))
        real_flock = fcntl.flock
        fcntl.flock = lambda *args: (self.reached("flock"), real_flock(*args))[1]

    def _watched(self, name):
        real = REAL[name]

        def call(*args, **named):
            self.reached(name)
            answer = real(*args, **named)
            if name == "fsync" and not self.is_looking:
                self.is_looking = True
                self.disk.flush(args[0])
                self.is_looking = False
            return answer

        return call

    def reached(self, name):
        if self.is_looking:
            return
        number, self.calls = self.calls, self.calls + 1
        kind, *rest = self.action
        if kind == "fail":
            code, lasts = rest
            if name in FAILING and (number == self.left or (lasts == "on" and number > self.left)):
                raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
        elif number == self.left:
            self.happen()

    def happen(self):
        self.is_looking = True
        kind, *rest = self.action
        if kind == "cut":
            files = self.disk.state(all_bytes=rest[0] == "all", all_names=rest[1] == "all")
            shown = self.disk.base.with_suffix(".left")
            shown.write_text(repr(files))
        os.kill(os.getpid(), signal.SIGKILL)


# --- scenarios --------------------------------------------------------------------------------------------------------
OLD = {"a": "old a", "b": "old b", "c": "old c"}
NEW = {"a": "new a", "b": "new b", "sub/d": "new d"}


def prepare(base):
    RUN[0] += 1
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    guard_of(base).protect()
    with guard_of(base).transaction(lease(5)) as txn:
        for name, text in OLD.items():
            txn.write(name, text)


def several(base, tell):
    """Change several files, delete one, and record a key, in one block."""
    with guard_of(base).transaction(lease(5), once="job") as txn:
        txn.delete("c")
        for name, text in NEW.items():
            txn.write(name, text)
    tell("new")


def one(base, tell):
    """Change one file."""
    with guard_of(base).transaction(lease(5)) as txn:
        txn.write("a", "new a")
    tell("new")


def made_again(base, tell):
    """Delete a file with others, and make it again."""
    several(base, tell)
    with guard_of(base).transaction(lease(5)) as txn:
        txn.write("c", "again")
    tell("again")


def sealed(base, tell):
    """Take over: raise the mark, and then write."""
    guard = guard_of(base)
    guard.seal(lease(7))
    tell("sealed")
    with guard.transaction(lease(7)) as txn:
        txn.write("a", "new a")
    tell("new")


STATES = {
    "several": {"old": OLD, "new": NEW},
    "one": {"old": OLD, "new": {**OLD, "a": "new a"}},
    "made_again": {"old": OLD, "new": NEW, "again": {**NEW, "c": "again"}},
    "sealed": {"old": OLD, "sealed": OLD, "new": {**OLD, "a": "new a"}},
}
"""What the files may hold, in order: at least what was told to be done."""


# --- one point --------------------------------------------------------------------------------------------------------
def run_point(base, scenario, action, left, counted):
    """Run the scenario in a fork until its point, and return what it told, its error, and whether the point came."""
    prepare(base)
    told_path = base.with_suffix(".told")
    told_path.write_text("")
    child = os.fork()
    if child == 0:
        told = told_path.open("a", buffering=1)
        error, point = None, Point(base, action, left, counted)
        point.watch()
        try:
            globals()[scenario](base, lambda text: REAL["write"](told.fileno(), text.encode() + b"\n"))
        except fencelock.FencelockError as caught:
            error = ("definite " if caught.definite else "unknown ") + type(caught).__name__ + f" {caught}"
        except BaseException as caught:
            error = f"stray {caught!r}"
        if action[0] == "cut" and point.calls <= left:
            point.happen()  # At the very end, too.
        point.action = ("nothing",)
        REAL["write"](told.fileno(), f"! {error}\n".encode())
        os._exit(0 if point.calls > left else 3)
    _, status = os.waitpid(child, 0)
    lines = told_path.read_text().splitlines()
    told = [line for line in lines if not line.startswith("!")]
    error = next((line[2:] for line in lines if line.startswith("!")), "None")
    is_over = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 3
    left_path = base.with_suffix(".left")
    if left_path.exists():
        rebuild(base, literal_eval(left_path.read_text()))
        left_path.unlink()
        is_over = len(told) == len(STATES[scenario]) - 1
    return told, error, is_over


def read_all(base):
    found = {}
    for path in (base / RESOURCE).rglob("*"):
        if path.is_file():
            found[str(path.relative_to(base / RESOURCE))] = path.read_text()
    return found


def judge(base, scenario, action, told, error):
    """Yield what is wrong: before the guard is used again, and after."""
    states = STATES[scenario]
    whole = {(name, text) for state in states.values() for name, text in state.items()}
    if torn := set(read_all(base).items()) - whole:
        yield f"a reader sees {torn}"
    if error.startswith("stray"):
        yield error
    mark = guard_of(base).mark()
    if "sealed" in told and mark.token < 7:
        yield f"a seal that was confirmed is gone: the mark is {mark.token}"
    found = read_all(base)
    matching = {name for name, state in states.items() if state == found}
    allowed = list(states)[list(states).index(told[-1]) if told else 0 :]
    if error.startswith("definite"):
        allowed = allowed[:1]
    if not matching & set(allowed):
        yield f"after {told} and {error}, the files hold {found}"
    yield from judge_next_holder(base, found)
    if scenario == "several" and matching:
        yield from judge_key(base, is_done="new" in matching)
    home = base / ".fencelock"
    left = [str(path) for part in ("drafts", "staged") for path in (home / part).rglob("*") if path.is_file()]
    if left or (home / "journal").stat().st_size:
        yield f"left over: {left}"


def judge_next_holder(base, found):
    """Yield what is wrong with the guard from now on."""
    guard = guard_of(base)
    guard.seal(lease(9))
    if read_all(base) != found:
        yield "a seal has changed the files"
    try:
        with guard.transaction(lease(7)) as txn:
            txn.write("a", "late")
    except fencelock.StaleTokenError:
        pass
    else:
        yield "an older lease wrote"
    with guard.transaction(lease(9)) as txn:
        txn.write("a", "next")
    if read_all(base).get("a") != "next":
        yield "the next holder's write is not there"


def judge_key(base, *, is_done):
    """Yield what is wrong with the key under which the work was recorded."""
    try:
        with guard_of(base).transaction(lease(9), once="job") as txn:
            txn.write("e", "once")
    except fencelock.AlreadyDoneError:
        if not is_done:
            yield "the key is recorded without its work"
    else:
        if is_done:
            yield "the work is done without its key"


# --- broken on purpose: what the checks must find ---------------------------------------------------------------------
def without_journal():
    commit._write_journal = lambda *_, **__: None


def without_finishing():
    def forget(self, opened):
        os.ftruncate(opened.journal, 0)

    commit.FolderClient._finish_interrupted = forget


def without_flushing_drafts():
    real = commit._flush_draft

    def flush(opened, draft):
        os.fsync, before = (lambda _: None), os.fsync
        try:
            return real(opened, draft)
        finally:
            os.fsync = before

    commit._flush_draft = flush


def without_flushing_folders():
    folder.OpenFolder.flush_folder = lambda *_: None


def without_flushing_the_journal():
    real = commit._write_journal
    commit._write_journal = lambda opened, content, **_: real(opened, content, is_flushed=False)


def without_flushing_its_end():
    real = commit._empty_journal
    commit._empty_journal = lambda opened, **_: real(opened, is_flushed=False)


def main(base, scenario, broken, counted, *actions):
    folder.LOCK_TIMEOUT_S = 1.0
    if broken:
        globals()[broken]()
    points, wrong, ends = 0, [], Counter()
    for action in (tuple(action.split()) for action in actions):
        is_over, left = False, 0
        while not is_over:
            told, error, is_over = run_point(Path(base), scenario, action, left, counted)
            ends[" ".join([*told, *error.split()[:2]])] += 1
            for what in judge(Path(base), scenario, action, told, error):
                wrong.append(f"{' '.join(action)} at {left}: {what}")
            points, left = points + 1, left + 1
    print(json.dumps({"points": points, "wrong": wrong, "ends": ends}))


if __name__ == "__main__":
    main(*sys.argv[1:])
