"""A process that does one thing at a time when it is told to, and the line to it.

Its other end calls `serve` with what it does. Nothing of it is left behind, whatever it does at the end.
"""

from collections.abc import Callable
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

REQUEST_TIMEOUT_S = 15.0
"""How long one command may take, on a busy machine, unless it says itself how long it will."""


class Child:
    """A process, as the one who tells it what to do sees it. Its last argument is its end of the line."""

    def __init__(self, context: SpawnContext | ForkServerContext, target: Callable[..., None], *arguments: Any) -> None:
        self.name = str(arguments[0]) if arguments else target.__name__
        self._line, far_end = context.Pipe()
        self._process = context.Process(target=target, args=(*arguments, far_end), daemon=True)
        self._process.start()
        far_end.close()

    def fileno(self) -> int:
        """Where its answers come."""
        return self._line.fileno()

    def tell(self, *command: Any) -> None:
        """Have it do something."""
        self._line.send(command)

    def hear(self, request_timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Wait until it is done; ChildProcessError with what it says if it failed."""
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
        """Have it do something, and wait until it is done."""
        self.tell(*command)
        return self.hear(request_timeout_s)

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.join()
        self._line.close()


def serve(line: "Connection[Any, Any]", answer: Callable[..., Any]) -> None:
    """Answer commands until nobody asks any more; what goes wrong is an answer too."""
    while True:
        try:
            command = line.recv()
        except EOFError:
            return
        try:
            told = answer(*command)
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"[:300]}
        line.send(told)
