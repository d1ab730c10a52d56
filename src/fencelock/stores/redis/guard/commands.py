"""What a server says of its commands: which only read, which write, and which of their words are keys. Pure.

Promise: a command is refused before anything is written if it names no key, touches a key of the guard's own, may wait,
or does more than its keys show. Each command has as many words as the server wants.
Never: a table of commands kept here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from fencelock.errors import ConfigError, GuardError

MAX_WORDS = 4000
"""Words of one command: Lua hands over not many more at once."""
_REFUSED = frozenset({"blocking", "noscript", "admin", "pubsub", "@dangerous"})
_KINDS = frozenset({"readonly", "write"})
_MOVABLE = "movablekeys"
_ARITY, _FLAGS, _FIRST, _LAST, _STEP, _CATEGORIES = range(1, 7)
_SUBCOMMANDS = 9

Words = tuple[bytes, ...]
"""A command: its name in upper case, and its arguments."""


class CommandShape(NamedTuple):
    """One command: how many words it has (negative: at least), its flags, and where its keys are."""

    arity: int
    flags: frozenset[str]
    first: int
    last: int
    step: int
    has_subcommands: bool = False

    @property
    def has_movable_keys(self) -> bool:
        """Whether only the server can tell which words are keys."""
        return _MOVABLE in self.flags

    def keys(self, words: Words) -> Words:
        """Return the keys of a command with this shape."""
        if self.first == 0:
            return ()
        last = self.last if self.last >= 0 else len(words) + self.last
        return words[self.first : last + 1 : self.step]


def encode_command(command: str, arguments: Sequence[Any]) -> Words:
    """Return a command as bytes; ConfigError if a word cannot be one."""
    if type(command) is not str or not command.replace("_", "").isalnum():
        raise ConfigError("write a command of Redis as its name and its arguments: txn.execute('SET', key, value)")
    if len(arguments) >= MAX_WORDS:
        raise ConfigError(f"a command of a guarded block has {MAX_WORDS} words at most: write several")
    return command.upper().encode(), *map(_word, arguments)


def _word(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(f"an argument of a command must be str, bytes, int or float, not {type(value).__name__}")
    try:
        return value.encode() if isinstance(value, str) else repr(value).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            "an argument of a command contains a lone surrogate: use text that UTF-8 can carry, or bytes"
        ) from None


def decode_shape(answer: Any) -> CommandShape | None:
    """Return the shape in one element of the answer to COMMAND INFO; None for a command that the server lacks."""
    if answer is None:
        return None
    flags = {one.decode() for one in (*answer[_FLAGS], *answer[_CATEGORIES])}
    where = answer[_FIRST], answer[_LAST], answer[_STEP]
    return CommandShape(answer[_ARITY], frozenset(flags), *where, has_subcommands=bool(answer[_SUBCOMMANDS]))


def check_command(words: Words, shape: CommandShape | None, *, must_be: str) -> CommandShape:
    """Return the shape; GuardError if a block cannot run this command. `must_be` is "readonly" or "write"."""
    name = words[0].decode()
    if shape is None:
        raise GuardError(f"the server has no command {name}")
    if shape.has_subcommands:
        raise GuardError(
            f"{name} has subcommands, and a guarded block runs none: run it outside of the block, if nothing that the "
            f"lock protects depends on it"
        )
    if len(words) < abs(shape.arity) or (shape.arity > 0 and len(words) != shape.arity):
        raise GuardError(f"{name} is called with {len(words) - 1} arguments, and takes another number of them")
    if not _KINDS & shape.flags:
        raise GuardError(
            f"{name} cannot be run in a guarded block: the server does not tell whether it reads or writes, as it does "
            f"not of scripts, and of commands with subcommands"
        )
    if _REFUSED & shape.flags or (shape.first == 0 and not shape.has_movable_keys):
        raise GuardError(
            f"{name} cannot be run in a guarded block: it may wait, or touches more than the keys that it names"
        )
    if must_be not in shape.flags:
        raise GuardError(
            f"{name} does not write: use txn.read" if must_be == "write" else f"{name} may write: use txn.execute"
        )
    return shape


def decode_keys(words: Words, answer: Any) -> Words:
    """Return the keys in the answer to COMMAND GETKEYS."""
    if isinstance(answer, ResponseError) or not answer:
        raise GuardError(f"the server finds no keys in {words[0].decode()} with these arguments ({answer})")
    return tuple(answer)
