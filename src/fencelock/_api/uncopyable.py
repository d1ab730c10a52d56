"""The base of the objects that a program cannot copy or pickle.

Promise: `copy.copy`, `copy.deepcopy` and `pickle` raise TypeError, as for the locks of `threading`, and say what to do
instead.
"""

from typing import ClassVar, NoReturn, SupportsIndex


class Uncopyable:
    """An object of which a copy would own the same lease or the same connections a second time."""

    __slots__ = ()
    _instead: ClassVar[str]
    """What to do instead, for the error."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{type(self).__name__} objects cannot be copied or pickled: {self._instead}")


class UncopyableBlock(Uncopyable):
    """The block of one transaction."""

    __slots__ = ()
    _instead = "a block is one transaction, and is entered once. Make another one for each transaction"
