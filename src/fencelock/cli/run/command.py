"""CMD, and the gate behind which it waits until the lock is held.

CMD's process is forked before there is a lock, a thread or a database. It becomes the leader of its own group, waits at
a pipe, and executes CMD when it receives the variables of the lease. So the group id is known, and the watchdog watches
the group, before CMD can run.

Promise: CMD never runs unless `start` was called: if the pipe is closed for any reason, the process exits. CMD inherits
this process's files, terminal, folder, signal mask and ignored signals unchanged. CMD is found and executed as by
env(1): sh runs a script without `#!`, and a CMD that cannot be executed exits with 127 (not found) or 126.
"""

import errno
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

NOT_FOUND = 127
NOT_EXECUTABLE = 126
_SHELL = "/bin/sh"
MESSAGE_BYTES = 4096
"""A write of at most this size to a pipe is atomic (PIPE_BUF)."""


class Command:
    """CMD as its parent sees it. Its process id, which is also its group id, is not reused before `reap`."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._is_reaped = False
        gate, self._gate = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._gate)
            _wait_and_execute(gate, words)
        os.close(gate)
        # Parent and child both do it, so that neither continues before it is done.
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)

    def start(self, variables: Mapping[str, str]) -> None:
        """Let CMD run, with these variables added to its environment."""
        message = b"\0".join(f"{name}={value}".encode() for name, value in variables.items())
        assert len(message) <= MESSAGE_BYTES
        with suppress(BrokenPipeError):  # It was killed at the gate: its exit status says how.
            os.write(self._gate, message)
        os.close(self._gate)

    def signal(self, number: int) -> None:
        """Send a signal to CMD's whole group; do nothing once CMD was reaped."""
        if not self._is_reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def stop_signal(self) -> int | None:
        """Return the signal that has stopped CMD since the last call, if any."""
        try:
            found = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:  # It has ended, so it cannot stop.
            return None
        return found.si_status if found is not None else None

    def has_ended(self) -> bool:
        """Return whether CMD has ended; its id is not free yet."""
        return os.waitid(os.P_PID, self.pid, _LEFT_AS_IS) is not None

    def reap(self) -> int:
        """Wait for CMD and return its exit code as a shell does: its own code, or 128 + the signal's number."""
        self._is_reaped = True
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code


_LEFT_AS_IS = os.WEXITED | os.WNOHANG | os.WNOWAIT


def _wait_and_execute(gate: int, words: tuple[str, ...]) -> NoReturn:
    code = NOT_EXECUTABLE
    try:
        os.setpgid(0, 0)
        _restore_signals()
        message = os.read(gate, MESSAGE_BYTES)
        if message:
            pairs = (pair.partition("=") for pair in message.decode().split("\0"))
            os.environ.update({name: value for name, _, value in pairs})
            _execute(words)
        code = 0
    except FileNotFoundError as error:
        code = NOT_FOUND
        _complain(words[0], error)
    except OSError as error:
        _complain(words[0], error)
    finally:
        os._exit(code)


def _execute(words: tuple[str, ...]) -> NoReturn:
    """Replace this process by CMD as execvp(3) does, which os.execvp does not: sh runs a script without `#!`."""
    program = words[0]
    folders = [""] if "/" in program else os.get_exec_path()
    missing: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    denied: OSError | None = None
    for folder in folders if program else ():
        path = os.path.join(folder, program)
        try:
            os.execv(path, words)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except PermissionError as error:
            denied = error
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execv(_SHELL, (_SHELL, path, *words[1:]))
    raise denied or missing


def _restore_signals() -> None:
    """Undo what Python does to signals at startup; signals that were ignored stay ignored, as nohup needs."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _complain(word: str, error: OSError) -> None:
    line = f"fencelock: {word!r} cannot be executed: {error.strerror if word else 'CMD is empty'}\n"
    os.write(2, line.encode(errors="backslashreplace"))
