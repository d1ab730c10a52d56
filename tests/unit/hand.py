"""Drive a flow by hand: look at what it asks for, answer it, or throw an error into it."""

from collections.abc import Sequence
from typing import Any

from fencelock.protocol.source_requests import SourceFlow


class Hand:
    """A driver that does nothing by itself. `request` is what the flow waits for; at its end there is `result`."""

    def __init__(self, flow: SourceFlow[Any]) -> None:
        self._flow = flow
        self.asked: list[Any] = []
        self.request: Any = None
        self.result: Any = None
        self.is_done = False
        self._step(lambda: next(flow))

    def reply(self, *values: Any) -> Any:
        """Answer the requests in order, and return the one that comes next."""
        for value in values:
            assert not self.is_done, f"nothing is asked any more, but {value!r} is left to answer"
            self._step(lambda value=value: self._flow.send(value))
        return self.request

    def throw(self, error: BaseException) -> Any:
        """Throw an error into the flow, and return what it asks for next."""
        assert not self.is_done
        self._step(lambda: self._flow.throw(error))
        return self.request

    def _step(self, step: Any) -> None:
        self.request = None
        try:
            self.request = step()
        except StopIteration as done:
            self.is_done, self.result = True, done.value
        except BaseException:
            self.is_done = True
            raise
        else:
            self.asked.append(self.request)


def kinds(requests: Sequence[Any]) -> list[str]:
    """Return the names of the requests, for comparison with what was expected."""
    return [type(request).__name__ for request in requests]
