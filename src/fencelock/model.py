"""The values that all layers share: names, tokens, claims, sequencers, and what inspection returns.

Promise: every value here is frozen, checked when it is made from outside input, and free of I/O. No value carries a
claim, which ends a lease. A sequencer carries the proof, H(claim), which is enough to write in the lease's name, and
never shows it in `repr`. Stores keep the digest, H(proof), which is enough for nothing.
"""

import base64
import os
import re
import sys
from dataclasses import dataclass, field
from functools import cache, lru_cache
from hashlib import sha256

from fencelock._sequencer_text import UNSIGNED, split_text
from fencelock.errors import ConfigError

MAX_LOCK_NAME_BYTES = 512
MAX_RESOURCE_NAME_BYTES = 512
MAX_HOLDER_BYTES = 512
MAX_PROGRAM_CHARACTERS = 100
MAX_REASON_BYTES = 2048
MIN_TOKEN = 1
MAX_TOKEN = 2**63 - 1
EPOCH_STRIDE = 2**40
"""Raising a source's epoch moves its counter to a multiple of this many tokens, above all that it has issued."""
YEAR_2026_S = 1_767_225_600
TOKENS_PER_S = 2**30
"""A history that an operator begins starts above this many tokens for each second since 2026."""
PLAUSIBLE_GAIN = 2**50
"""How far a token may lie above the resource's last one, or above what the clock gives a new history."""

MEMORY_SOURCE_PREFIX = "memory-"
"""The prefix of the id of a source in memory. Its tokens start at 1 in each process, so durable guards refuse them."""

SEQUENCER_VARIABLE = "FENCELOCK_SEQUENCER"
MAX_HASHED_CLAIMS = 2**14
_SIGNED_PREFIX = b"fencelock sequencer v2\0"
_HASH_PREFIX = b"fencelock claim\0"
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PROOF = re.compile(r"[0-9a-f]{32}")
_SIGNATURE = re.compile(r"([A-Za-z0-9_-]{22})?")
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


def token_ceiling(unix_s: float, mark: int) -> int:
    """Return the highest token that a source can have issued by now, for a resource with this mark.

    A guard against accidents: a timestamp in nanoseconds or a large random number lies above it. A forger picks one
    below it.
    """
    return min(max(int(unix_s - YEAR_2026_S) * TOKENS_PER_S, mark) + PLAUSIBLE_GAIN, MAX_TOKEN)


def draw_claim() -> str:
    """Return a new claim: 128 random bits from the system, as 32 hexadecimal digits."""
    return os.urandom(16).hex()


def one_way(secret: str) -> str:
    """Return H(secret): the first 128 bits of a SHA-256, as 32 hexadecimal digits.

    A claim's hash is its lease's proof, which sequencers show; a proof's hash is the digest, which stores keep. The
    input has 128 random bits, so nobody finds it from its hash.
    """
    return sha256(_HASH_PREFIX + secret.encode()).hexdigest()[:32]


@lru_cache(MAX_HASHED_CLAIMS)
def digest_of_claim(claim: str) -> str:
    """Return H(H(claim)): what a source keeps of a claim. Remembered, since each renewal sends the claim again."""
    return one_way(one_way(claim))


@lru_cache(MAX_HASHED_CLAIMS)
def _digest_of_proof(proof: str) -> str:
    """Return H(proof). Remembered, since each block compares it."""
    return one_way(proof)


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

    Who has it may write in the lease's name until a newer holder seals the resource; it cannot renew, release or close.
    `str(sequencer)` is ASCII and contains the proof; `repr` hides it. `key_id` names the key of the signature; `"0"`,
    with an empty signature, stands for none.
    """

    source_id: str
    history_id: str
    lock: str
    token: int
    proof: str = field(repr=False)
    mode: str = EXCLUSIVE
    key_id: str = field(default=UNSIGNED, compare=False)
    signature: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        check_lock_name(self.lock)
        check_token(self.token)
        for label in ("source_id", "history_id", "key_id"):
            value = getattr(self, label)
            if not (isinstance(value, str) and _IDENTIFIER.fullmatch(value)):
                raise ConfigError(f"a sequencer's {label} must be 1 to 64 characters of A-Z, a-z, 0-9, _ and -")
        if not _PROOF.fullmatch(str(self.proof)):
            raise ConfigError("a sequencer's proof must be 32 hexadecimal digits, a-f in lower case")
        if self.mode != EXCLUSIVE:
            raise ConfigError(f"a sequencer's mode is unknown: this version knows {EXCLUSIVE!r} only")
        if not _SIGNATURE.fullmatch(str(self.signature)):
            raise ConfigError("a sequencer's signature must be 22 characters of base64url, or empty")
        if (self.key_id == UNSIGNED) != (self.signature == ""):
            raise ConfigError(
                f"a sequencer has a signature and its key's id, or no signature and the key id {UNSIGNED}"
            )

    @property
    def digest(self) -> str:
        """H(proof): what a mark keeps of the lease that has sealed it."""
        return _digest_of_proof(self.proof)

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that the signature is over. They have the digest in the proof's place: a source signs no secret."""
        return _SIGNED_PREFIX + self._unsigned(self.digest).encode()

    def _unsigned(self, proof: str) -> str:
        lock = base64.urlsafe_b64encode(self.lock.encode()).rstrip(b"=").decode()
        identity = f"{self.source_id}.{self.history_id}.{self.mode}.{self.token}"
        return f"fl2.{self.key_id}.{identity}.{proof}.{lock}"

    def __str__(self) -> str:
        return f"{self._unsigned(self.proof)}.{self.signature}"

    @classmethod
    def parse(cls, text: str) -> "Sequencer":
        """Return the sequencer that `str()` wrote; raise ConfigError for anything else. No signature is checked."""
        key_id, source_id, history_id, mode, token, proof, lock, signature = split_text(text)
        return cls(source_id, history_id, lock, int(token), proof, mode, key_id, signature)

    @classmethod
    def from_env(cls) -> "Sequencer":
        """Return the sequencer that `fencelock run` put into FENCELOCK_SEQUENCER; raise ConfigError without one."""
        text = os.environ.get(SEQUENCER_VARIABLE)
        if text is None:
            raise ConfigError(f"{SEQUENCER_VARIABLE} is not set: start this program by `fencelock run NAME -- CMD`")
        return cls.parse(text)


@dataclass(frozen=True, slots=True)
class LockInfo:
    """What a source knows about one lock. `token` is the last one issued; times are seconds.

    `token` None: none was issued yet, or the source cannot tell: ZooKeeper knows the token of a holder alone, and
    `is_kept` says that it has a record of a free lock. `holder` None: the lock is free. `waiters` are the holders'
    names in the order of the queue.
    """

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
    """A source's identity and counter: what `fencelock epoch` prints.

    `reserved_token` is the durable bound up to which tokens may be issued.
    """

    source_id: str
    epoch: int
    history_id: str
    last_token: int
    reserved_token: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The highest token that a resource has promised, and the lease that it belongs to. Token 0: never sealed.

    `digest` is H(proof) of that lease, with which nobody can write; None if no lease owns the mark: an operator, or the
    switch to enforcement, raised it.
    """

    resource: str
    lock: str
    token: int = 0
    source_id: str | None = None
    history_id: str | None = None
    digest: str | None = None
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
class LeaseCheck:
    """What a source says of one lease at the moment of asking: whether it holds its lock, and for how many more
    seconds.

    `last_token` is the last token issued for the lock; None if the source cannot tell.
    """

    lock: str
    token: int
    remaining: float
    last_token: int | None

    @property
    def is_current(self) -> bool:
        """True if the lease held the lock when the source answered."""
        return self.remaining > 0


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key with which a source signs sequencers: HMAC-SHA256, of which the first 16 bytes are the signature.

    Times are seconds since 1970; a source signs with the newest key that is neither future nor retired.
    """

    key_id: str
    secret: bytes = field(repr=False)
    not_before_s: int = 0
    retired_s: int | None = None


@dataclass(frozen=True, slots=True)
class BrokenLock:
    """What `break_lock` did: the holder whose lease ended (None: the lock was free), and the token that outranks it."""

    lock: str
    token: int
    holder: str | None
    sequencer: Sequencer = field(repr=False)
