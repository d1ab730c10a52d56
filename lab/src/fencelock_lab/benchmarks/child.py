"""A process that carries out one command at a time, and the connection to it.

The process calls `serve` with a function that carries out commands. It is killed at the end.
"""

from collections.abc import Callable
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

REQUEST_TIMEOUT_S = 15.0
"""How long one command may take, on a busy machine, unless it says itself how long it will."""


class Child:
    """A process that carries out commands. The last argument of its function is its end of the connection."""

    def __init__(self, context: SpawnContext | ForkServerContext, target: Callable[..., None], *arguments: Any) -> None:
        self.name = str(arguments[0]) if arguments else target.__name__
        self._line, far_end = context.Pipe()
        self._process = context.Process(target=target, args=(*arguments, far_end), daemon=True)
        self._process.start()
        far_end.close()

    def fileno(self) -> int:
        """Return the descriptor on which its answers arrive."""
        return self._line.fileno()

    def send(self, *command: Any) -> None:
        """Send it a command."""
        self._line.send(command)

    def receive(self, request_timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Wait for the answer; ChildProcessError with its message if the command failed."""
        try:
            answer = (
                self._line.recv()
                if self._line.poll(request_timeout_s)
                else {"error": f"no answer in {request_timeout_s:g} s"}
            )
        except EOFError:
            answer = {"error": "its process has ended"}
        if isinstance(answer, dict):
            raise ChildProcessError(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, *command: Any, request_timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Send it a command, and wait for the answer."""
        self.send(*command)
        return self.receive(request_timeout_s)

    def close(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()
        self._line.close()


def serve(line: "Connection[Any, Any]", answer: Callable[..., Any]) -> None:
    """Answer commands until the connection ends; an error is an answer too."""
    while True:
        try:
            command = line.recv()
        except EOFError:
            return
        try:
            reply = answer(*command)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        line.send(reply)
