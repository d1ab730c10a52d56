"""A web server of a test, with all its processes: uvicorn or gunicorn on a free port."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from fencelock_lab.servers.server import HOST, reserve_port
from tests.support.helpers import DEADLINE_S, wait_until


class Served:
    """`python -m WORDS`, which listens on `{port}`. A context manager: at its end all its processes are gone."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.folder = folder
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *(word.format(host=HOST, port=self.port) for word in words)],
                env=os.environ | environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        try:
            wait_until(lambda: self._process.poll() is not None or self.is_ready())
            assert self._process.poll() is None, self.log
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)
        self._reserved.close()

    @property
    def log(self) -> str:
        """Everything that the server has written."""
        return (self.folder / "log").read_text()

    def is_ready(self) -> bool:
        """Return whether it accepts connections."""
        with suppress(OSError), socket.create_connection((HOST, self.port), DEADLINE_S):
            return True
        return False
