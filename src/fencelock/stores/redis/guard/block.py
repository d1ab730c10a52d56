"""What `guard.transaction(lease)` yields at Redis: reads at once, and all commands in one script at the block's end.

Promise: the script compares the marks and the guard's own keys that the block relies on, and the connection watches
every key that the block has read. If one of them has changed since, nothing is written. Commands are checked before
anything is written. Never: a write before the end of the block; a key of the guard's own touched by a user's command.
"""

import re
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from fencelock.errors import GuardError, OutcomeUnknownError, SourceError
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.encoding import shorten
from fencelock.stores.optimistic.write_buffer import WriteBuffer, too_large_error, unstored_error
from fencelock.stores.redis.connection.client import EXEC, WATCH, RedisRequest
from fencelock.stores.redis.connection.errors import TRY_LATER, code_of, lacks_right, map_refusal
from fencelock.stores.redis.connection.url import RedisConnectionInfo
from fencelock.stores.redis.guard.commands import (
    CommandShape,
    Words,
    check_command,
    decode_keys,
    decode_shape,
    encode_command,
)
from fencelock.stores.redis.guard.layout import RedisLayout
from fencelock.stores.statements import read_file

MAX_WRITES = 10_000
"""Commands of one block: the server does nothing else while their script runs."""
MAX_REQUEST_BYTES = 16_000_000
_MULTI = ("MULTI",)
_LINES = read_file("fencelock.stores.redis.guard", "compare_and_do.lua").splitlines()
COMPARE_AND_DO = "\n".join(line for line in _LINES if not line.startswith("--")).encode()
"""The script, without its comments."""
_LACKS_RIGHT = re.compile(r"\bNOPERM\b|user executing the script can't|ACL failure in script")
"""How a script is told that its user may not run a command: by Redis 7.0, and by newer servers, which were not run."""
Requests = Generator[RedisRequest, Any, Any]
"""Yields requests, and is sent the list of their answers."""
Shapes = dict[bytes, CommandShape | None]
"""What the server has said of its commands, by their names."""


class RedisComparison(NamedTuple):
    """Something that must be unchanged: the command that reads it, the value that was read, and its name for errors."""

    read: Words
    value: bytes | None
    name: str


class RedisWriteBuffer(WriteBuffer):
    """The reads and commands that both kinds of transactions collect."""

    def __init__(self, layout: RedisLayout, shapes: Shapes, comparisons: Iterable[RedisComparison]) -> None:
        super().__init__()
        self._layout = layout
        self._shapes = shapes
        self._comparisons = list(comparisons)
        self._commands: list[Words] = []
        self._written: list[Words] = []
        """The keys of the first of these commands: each command is asked about once."""
        self._before: dict[Words, Words] = {}
        self._after: dict[Words, Words] = {}
        self._is_watching = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._commands)} commands>"

    def execute(self, command: str, *arguments: str | bytes | float) -> None:
        """Run a command that writes at the end of the block: its name, and its arguments as redis-cli takes them."""
        self._check_open()
        self._commands.append(encode_command(command, arguments))

    # --- reads --------------------------------------------------------------------------------------------------------
    def _read(self, command: str, arguments: tuple[Any, ...]) -> Requests:
        """Watch the keys of a command that only reads, run it, and return its answer."""
        self._check_open()
        words = encode_command(command, arguments)
        keys = yield from self._keys(words, must_be="readonly")
        written: set[bytes] = yield from self._written_keys()
        if written.intersection(keys):
            raise unstored_error(", ".join(_shown(key) for key in keys if key in written))
        self._is_watching = True
        # With a key of the guard's slot: so a cluster refuses a key of another slot here, and not only at the end.
        watch = (WATCH, self._layout.slot, *keys)
        watched, answer = yield RedisRequest((watch, words), is_read=True)
        for one in (watched, answer):
            if isinstance(one, ResponseError):
                raise self._refused(words, one)
        return answer

    def _refused(self, words: Words, error: ResponseError) -> GuardError | SourceError:
        if error.status_code == "NOPERM":
            return lacks_right(self._layout.info, f"{words[0].decode()}: {error}")
        if code_of(error) in TRY_LATER:
            return map_refusal(error, self._layout.info, is_read=True)
        if error.status_code == "CROSSSLOT":
            return GuardError(
                f"{words[0].decode()} names a key in another slot of the cluster than the guard's: write "
                f"{{{self._layout.info.prefix}}} into each key, as in {{{self._layout.info.prefix}}}:name. Nothing was "
                f"written"
            )
        code = f"{error.status_code} " if error.status_code else ""
        return GuardError(f"the server refused {words[0].decode()}: {shorten(f'{code}{error}')}. Nothing was written")

    # --- what commands touch ------------------------------------------------------------------------------------------
    def _written_keys(self) -> Requests:
        """Return the keys of all commands; GuardError if the block may not run one of them."""
        for words in self._commands[len(self._written) :]:
            self._written.append((yield from self._keys(words, must_be="write")))
        return set().union(*self._written)

    def _keys(self, words: Words, *, must_be: str) -> Requests:
        """Return the keys of a command that a block may run; GuardError if it may not."""
        name = words[0]
        if name not in self._shapes:
            (answer,) = yield RedisRequest((("COMMAND", "INFO", name),), is_read=True)
            if isinstance(answer, ResponseError):
                raise self._refused((b"COMMAND",), answer)
            self._shapes[name] = decode_shape(answer[0])
        shape = check_command(words, self._shapes[name], must_be=must_be)
        if shape.has_movable_keys:
            # Not remembered for other arguments: a number or a word among them says which of them are keys.
            (answer,) = yield RedisRequest((("COMMAND", "GETKEYS", *words),), is_read=True)
            if isinstance(answer, ResponseError) and answer.status_code == "NOPERM":
                raise self._refused((b"COMMAND",), answer)
            keys = decode_keys(words, answer)
        else:
            keys = shape.keys(words)
        for key in keys:
            if key.startswith(self._layout.own):
                raise GuardError(f"key {_shown(key)} is the guard's own: only the guard reads and writes it")
        return keys

    # --- the guard's own ----------------------------------------------------------------------------------------------
    def rely_on(self, comparison: RedisComparison) -> None:
        """Refuse the block if something of the guard's own has another value at its end."""
        self._comparisons.append(comparison)

    def keep(self, place: Words, write: Words) -> None:
        """Write something of the guard's own; if that is written again, the last of it after the block's commands.

        A script that fails midway leaves the first: an effect that began, and has no result.
        """
        (self._after if place in self._before else self._before)[place] = write

    # --- the end ------------------------------------------------------------------------------------------------------
    def finish(self) -> Requests:
        """Compare and write; ConflictError if something has changed, GuardError if the block is refused."""
        keys: set[bytes] = yield from self._written_keys()
        if len(self._commands) > MAX_WRITES:
            raise too_large_error(f"has {len(self._commands)} commands", f"a script takes {MAX_WRITES} of them")
        # If the first command fails, nothing was written. If a later one does, what began stays in doubt.
        commands = [*self._commands[:1], *self._before.values(), *self._commands[1:], *self._after.values()]
        script = encode_script(self._layout, self._comparisons, commands, keys)
        if (size_bytes := sum(map(len, script))) > MAX_REQUEST_BYTES:
            raise too_large_error(f"needs {size_bytes} bytes", f"a guard sends {MAX_REQUEST_BYTES} in one script")
        answer = yield from self._run(script)
        if isinstance(answer, ResponseError) and answer.status_code == "CROSSSLOT":
            raise self._refused((b"a command",), answer)
        check_done(self._layout, answer, self._comparisons, commands)

    def _run(self, script: Words) -> Requests:
        if not self._is_watching:
            (answer,) = yield RedisRequest((script,))
            return answer
        begun, queued, ended = yield RedisRequest((_MULTI, script, EXEC))
        if isinstance(begun, ResponseError):
            # The script may have run at once, and nothing that was read was compared.
            raise OutcomeUnknownError(
                f"{self._layout.info.url} refused MULTI ({begun}): whether the guarded block was written is unknown"
            )
        if ended is None:
            raise ConflictError("a key that the block had read has changed")
        refused = next((one for one in (queued, ended) if isinstance(one, ResponseError)), None)
        return refused or ended[0]


# --- the script -------------------------------------------------------------------------------------------------------
def encode_script(
    layout: RedisLayout, comparisons: Iterable[RedisComparison], commands: Iterable[Words], keys: Iterable[bytes] = ()
) -> Words:
    """Return the command that runs the script; `keys` are those of the user's commands.

    The floors are compared, and not declared: the server lets nobody declare a key who may not write it.
    """
    compared = list(comparisons)
    declared = sorted(({one.read[1] for one in compared} | set(keys)) - {layout.floors})
    words: list[bytes] = [b"EVAL", COMPARE_AND_DO, b"%d" % len(declared), *declared, b"%d" % len(compared)]
    for one in compared:
        words += [b"%d" % len(one.read), *one.read, b"" if one.value is None else b"=" + one.value]
    for command in commands:
        words += [b"%d" % len(command), *command]
    return tuple(words)


def check_done(
    layout: RedisLayout, answer: Any, comparisons: Sequence[RedisComparison], commands: Sequence[Words]
) -> None:
    """Raise what the script's answer means, unless all was done."""
    if isinstance(answer, ResponseError):
        raise map_refusal(answer, layout.info, is_read=False)
    outcome, *details = answer
    if outcome == b"changed":
        raise ConflictError(f"{comparisons[details[0] - 1].name} has changed")
    if outcome == b"failed":
        number, reason = details
        raise _failed(layout.info, number, commands, shorten(reason.decode(errors="replace")))


def _failed(info: RedisConnectionInfo, number: int, commands: Sequence[Words], reason: str) -> GuardError | SourceError:
    name = commands[number][0].decode()
    if number == 0 and _LACKS_RIGHT.search(reason):
        return lacks_right(info, f"{name}: {reason}")
    if number == 0:
        return GuardError(f"the server refused {name} ({reason}): nothing of the guarded block was written")
    return OutcomeUnknownError(
        f"the guarded block is partly applied: {name} failed ({reason}) as command {number + 1} of {len(commands)}, "
        f"and Redis does not roll back the {number} before it. Look at what is there, and repair it under the lock"
    )


def _shown(key: bytes) -> str:
    return repr(shorten(key.decode("utf-8", "backslashreplace")))
