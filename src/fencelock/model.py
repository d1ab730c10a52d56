"""The values that all layers share: names, tokens, claims, sequencers, and what inspection returns.

Promise: every value here is frozen, checked when it is made from outside input, and free of I/O. A value that carries a
claim never shows it in `repr`, because a claim is enough to release the lease and to write in its name.
"""

import base64
import binascii
import os
import re
import sys
from dataclasses import dataclass, field
from functools import cache

from fencelock.errors import ConfigError

MAX_LOCK_NAME_BYTES = 512
MAX_RESOURCE_NAME_BYTES = 512
MAX_HOLDER_BYTES = 512
MAX_PROGRAM_CHARACTERS = 100
MAX_REASON_BYTES = 2048
MIN_TOKEN = 1
MAX_TOKEN = 2**63 - 1
EPOCH_STRIDE = 2**40
"""Raising a source's epoch moves its counter to the next multiple of this many tokens."""

MEMORY_SOURCE_PREFIX = "memory-"
"""The prefix of the id of a source in memory. Its tokens start at 1 in each process, so durable guards refuse them."""

SEQUENCER_VARIABLE = "FENCELOCK_SEQUENCER"
_SEQUENCER_FORM = "fl1.<source-id>.<history-id>.<mode>.<token>.<claim>.<lock, base64url>"
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DECIMAL = re.compile(r"[1-9][0-9]{0,18}")
_PRINTABLE_BITS = 256
EXCLUSIVE = "x"


def check_name(name: object, *, what: str, limit_bytes: int) -> str:
    """Return `name` if it is a valid name; otherwise raise ConfigError, which says what a valid name is."""
    if not isinstance(name, str):
        raise ConfigError(f"a {what} must be a str, not {type(name).__name__}")
    try:
        size_bytes = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise ConfigError(f"{what} {name!r} contains a lone surrogate: use text that UTF-8 can encode") from None
    if not name:
        raise ConfigError(f"a {what} must not be empty")
    if size_bytes > limit_bytes:
        raise ConfigError(f"a {what} may have {limit_bytes} bytes of UTF-8 at most; this one has {size_bytes}")
    if "\0" in name:
        raise ConfigError(f"{what} {name!r} contains U+0000: leave it out")
    return name


def check_lock_name(name: object) -> str:
    """Return `name` if it can name a lock, that is, a non-empty str of at most 512 bytes of UTF-8 without U+0000."""
    return check_name(name, what="lock name", limit_bytes=MAX_LOCK_NAME_BYTES)


def check_resource_name(name: object) -> str:
    """Return `name` if it can name a resource; the rules are those of lock names."""
    return check_name(name, what="resource name", limit_bytes=MAX_RESOURCE_NAME_BYTES)


def check_token(token: object) -> int:
    """Return `token` if it is an integer with 1 <= token < 2**63; raise ConfigError if not."""
    if isinstance(token, bool) or not isinstance(token, int):
        raise ConfigError(f"a token must be an int, not {type(token).__name__}")
    if not MIN_TOKEN <= token <= MAX_TOKEN:
        shown = f"{token}" if token.bit_length() <= _PRINTABLE_BITS else f"with {token.bit_length()} bits"
        raise ConfigError(f"token {shown} is outside the range of tokens, 1 <= token < 2**63")
    return token


def draw_claim() -> str:
    """Return a new claim: 128 random bits from the system, as 32 hexadecimal digits."""
    return os.urandom(16).hex()


@cache
def _host_and_program() -> tuple[str, str]:
    program = os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    # A file name may contain bytes that are not text, and a program may set sys.argv[0] to anything.
    readable = program.encode("utf-8", "replace").decode().replace("\0", "?")
    return os.uname().nodename, readable[:MAX_PROGRAM_CHARACTERS]


def default_holder() -> str:
    """Return the holder's name of this process, for people to read: `host:pid:program`."""
    host, program = _host_and_program()
    return f"{host}:{os.getpid()}:{program}"


def check_holder(holder: object) -> str:
    """Return `holder` if it can name a holder; the rules are those of lock names."""
    return check_name(holder, what="holder", limit_bytes=MAX_HOLDER_BYTES)


def check_reason(reason: object) -> str:
    """Return the reason if an audit entry can keep it: not blank, at most 2048 bytes of UTF-8."""
    text = check_name(reason, what="reason", limit_bytes=MAX_REASON_BYTES)
    if not text.strip():
        raise ConfigError("a reason must not be blank: say why, for the readers of the audit entries")
    return text


@dataclass(frozen=True, slots=True)
class Sequencer:
    """The portable proof of a lease, for other processes and for resources.

    `str(sequencer)` is ASCII and contains the claim: treat it as a secret. `repr` hides the claim.
    """

    source_id: str
    history_id: str
    lock: str
    token: int
    claim: str = field(repr=False)
    mode: str = EXCLUSIVE

    def __post_init__(self) -> None:
        check_lock_name(self.lock)
        check_token(self.token)
        for label in ("source_id", "history_id", "claim"):
            value = getattr(self, label)
            if not (isinstance(value, str) and _IDENTIFIER.fullmatch(value)):
                raise ConfigError(f"a sequencer's {label} must be 1 to 64 characters of A-Z, a-z, 0-9, _ and -")
        if self.mode != EXCLUSIVE:
            raise ConfigError(f"a sequencer's mode is unknown: this version knows {EXCLUSIVE!r} only")

    def __str__(self) -> str:
        lock = base64.urlsafe_b64encode(self.lock.encode()).rstrip(b"=").decode()
        return f"fl1.{self.source_id}.{self.history_id}.{self.mode}.{self.token}.{self.claim}.{lock}"

    @classmethod
    def parse(cls, text: str) -> "Sequencer":
        """Return the sequencer that `str()` wrote; raise ConfigError for anything else."""
        parts = str(text).split(".")
        if len(parts) != _SEQUENCER_FORM.count(".") + 1 or parts[0] != "fl1":
            raise ConfigError(f"not a sequencer: expected {_SEQUENCER_FORM}")
        _, source_id, history_id, mode, token, claim, encoded = parts
        if not _DECIMAL.fullmatch(token):
            # Without the part itself: in a text whose parts are shuffled it may be the claim.
            raise ConfigError("not a sequencer: its token is not an integer with 1 <= token < 2**63")
        return cls(source_id, history_id, _decode_lock(encoded), int(token), claim, mode)

    @classmethod
    def from_env(cls) -> "Sequencer":
        """Return the sequencer that `fencelock run` put into FENCELOCK_SEQUENCER; raise ConfigError without one."""
        text = os.environ.get(SEQUENCER_VARIABLE)
        if text is None:
            raise ConfigError(f"{SEQUENCER_VARIABLE} is not set: start this program by `fencelock run NAME -- CMD`")
        return cls.parse(text)


def _decode_lock(encoded: str) -> str:
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        lock = raw.decode("utf-8")
    except (binascii.Error, ValueError):
        raise ConfigError("not a sequencer: its last part is not the base64url of a lock name") from None
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != encoded:
        raise ConfigError("not a sequencer: its last part is not the canonical base64url of a lock name")
    return lock


@dataclass(frozen=True, slots=True)
class LockInfo:
    """What a source knows about one lock. `token` is the last one issued (None: none yet); times are seconds."""

    name: str
    token: int | None
    holder: str | None
    remaining: float
    ttl: float | None
    waiters: tuple[str, ...]
    is_kept: bool = False
    """True if the source keeps the lock but cannot tell its last token, as ZooKeeper does for a lock that is free."""

    @property
    def is_known(self) -> bool:
        """True if the source has a record of the lock."""
        return self.is_kept or self.token is not None or self.is_held or bool(self.waiters)

    @property
    def is_held(self) -> bool:
        """True while a lease on the lock is running."""
        return self.holder is not None


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source's identity and counter: what `fencelock epoch` prints."""

    source_id: str
    epoch: int
    history_id: str
    last_token: int
    reserved_token: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The highest token that a resource has promised, and the lease that it belongs to. Token 0: never sealed.

    `claim` is None if no lease owns the mark: an operator, or the switch to enforcement, raised it.
    """

    resource: str
    lock: str
    token: int = 0
    source_id: str | None = None
    history_id: str | None = None
    claim: str | None = field(default=None, repr=False)
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class Protection:
    """One table that a guard protects: the resource that it belongs to, and the mode (`enforce` or `observe`)."""

    table: str
    resource: str
    mode: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that `fencelock doctor` found: a stable code, what is wrong, and what to do about it. `resource` is
    None if it concerns the whole store.
    """

    code: str
    message: str
    remedy: str
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class BrokenLock:
    """What `break_lock` did: the holder whose lease ended (None: the lock was free), and the token that outranks it."""

    lock: str
    token: int
    holder: str | None
    sequencer: Sequencer = field(repr=False)
