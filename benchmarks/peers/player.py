"""One contender in a process of its own, and the other end of its line.

Run as `python -m benchmarks.peers.player STORE CONTENDER URL LOCK`. It reads one command a line, as JSON, and answers
each by one line when it is done; times are nanoseconds of CLOCK_MONOTONIC, the same for all processes.
"""

import json
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.contender import Contender, Lock

ROOT = Path(__file__).resolve().parent.parent.parent


def contenders(store: str) -> list[Contender]:
    """Return who is compared on a store; the first is what the others are compared with."""
    found: list[Contender] = import_module(f"benchmarks.peers.{store}").CONTENDERS
    return found


class Player:
    """A contender's process, as the one who tells it what to do sees it."""

    def __init__(self, store: str, contender: Contender, url: str, lock: str) -> None:
        self.contender = contender
        command = [sys.executable, "-m", "benchmarks.peers.player", store, contender.name, url, lock]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    @property
    def output(self) -> IO[str]:
        """Where its answers come."""
        assert self._process.stdout is not None
        return self._process.stdout

    def tell(self, *command: Any) -> None:
        """Have it do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Wait until it is done; ChildProcessError with what it says if it failed."""
        line = self.output.readline()
        answer = json.loads(line) if line else {"error": f"ended with {self._process.wait()}"}
        if isinstance(answer, dict):
            raise ChildProcessError(f"{self.contender.name}: {answer['error']}")
        return answer

    def ask(self, *command: Any) -> Any:
        """Have it do something, and wait until it is done."""
        self.tell(*command)
        return self.hear()

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def play(lock: Lock, command: list[Any]) -> Any:
    """Do what one command says, and return the answer."""
    match command:
        case ["cycles", count]:
            return lock.cycles(count)
        case ["acquire"]:
            lock.acquire()
            return time.monotonic_ns()
        case ["release"]:
            released_ns = time.monotonic_ns()
            lock.release()
            return released_ns
        case ["contend", seconds]:
            return _contend(lock, seconds)
        case _:
            raise ValueError(command)


def _contend(lock: Lock, seconds: float) -> list[int]:
    """Take and free the lock for some time; return how often, and the longest wait in nanoseconds."""
    count = longest_ns = 0
    end_ns = time.monotonic_ns() + int(seconds * 1e9)
    while (began_ns := time.monotonic_ns()) < end_ns:
        lock.acquire()
        longest_ns = max(longest_ns, time.monotonic_ns() - began_ns)
        lock.release()
        count += 1
    return [count, longest_ns]


def main(store: str, name: str, url: str, lock_name: str) -> None:
    """Answer commands until there are no more."""
    # What a library prints is not an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lock: Lock | None = None
    for line in sys.stdin:
        try:
            if lock is None:
                (contender,) = [one for one in contenders(store) if one.name == name]
                lock = contender.make(url, lock_name)
            answer = play(lock, json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)  # Some have threads that never end.


if __name__ == "__main__":
    main(*sys.argv[1:])
