"""Empty a queue from which other threads take at the same moment, such as a store's idle connections."""

from collections import deque
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


def drained(queue: deque[Item]) -> Iterator[Item]:
    """Take one item after the other, until the queue is empty.

    Not tested first: another thread may take the last item between a test and the pop.
    """
    while True:
        try:
            item = queue.pop()
        except IndexError:
            return
        yield item
