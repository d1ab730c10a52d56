"""Drive a flow by hand: read its request, and send a reply or throw an error."""

from collections.abc import Sequence
from typing import Any

from fencelock.protocol.source_requests import SourceFlow


class Hand:
    """A driver that does nothing by itself. `request` is the flow's pending request; at its end `result` is set."""

    def __init__(self, flow: SourceFlow[Any]) -> None:
        self._flow = flow
        self.asked: list[Any] = []
        self.request: Any = None
        self.result: Any = None
        self.is_done = False
        self._step(lambda: next(flow))

    def reply(self, *values: Any) -> Any:
        """Answer the requests in order, and return the next one."""
        for value in values:
            assert not self.is_done, f"the flow has ended, but {value!r} is left to answer"
            self._step(lambda value=value: self._flow.send(value))
        return self.request

    def throw(self, error: BaseException) -> Any:
        """Throw an error into the flow, and return its next request."""
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
    """Return the names of the requests, to compare with the expected ones."""
    return [type(request).__name__ for request in requests]
