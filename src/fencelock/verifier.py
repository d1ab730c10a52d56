"""Check a signed sequencer without asking its source: for services that were handed one.

Promise: a sequencer that passes was issued by the source that has the key, for the lock that it names, and says what it
said then. "Issued" is not "current": whether a newer holder exists, only a mark knows, or `source.check` for the moment
of asking. Never: I/O, or a text that passes in two spellings.
"""

import base64
import hmac
import json
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from fencelock._sequencer_text import UNSIGNED
from fencelock.errors import ConfigError, ForgedSequencerError, ImplausibleTokenError, StaleTokenError, WrongLockError
from fencelock.model import Sequencer, SigningKey, token_ceiling

SIGNATURE_BYTES = 16
_WILDCARD = "*"


def sign(sequencer: Sequencer, key: SigningKey) -> Sequencer:
    """Return the sequencer with this key's signature: the first 16 bytes of an HMAC-SHA256 (RFC 2104), as base64url."""
    unsigned = replace(sequencer, key_id=key.key_id, signature=_PLACEHOLDER)
    return replace(unsigned, signature=_signature(unsigned, key))


_PLACEHOLDER = "A" * 22


def _signature(sequencer: Sequencer, key: SigningKey) -> str:
    digest = hmac.new(key.secret, sequencer.signed_bytes, sha256).digest()[:SIGNATURE_BYTES]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def covers(pattern: str, name: str) -> bool:
    """Return whether a name matches: a pattern that ends in `*` is a prefix, any other is the name itself."""
    return name.startswith(pattern[:-1]) if pattern.endswith(_WILDCARD) else name == pattern


class Verifier:
    """Verifies signed sequencers of one source.

    `keys` are the source's, as `fencelock keys export` writes them. `locks` is the name of the lock that is accepted,
    or a prefix that ends in `*`; the default accepts every lock of the source. `ceiling=False` accepts a token that no
    source can have issued by this machine's clock.
    """

    def __init__(self, keys: Iterable[SigningKey], *, source_id: str, locks: str = "*", ceiling: bool = True) -> None:
        self._keys = {key.key_id: key for key in keys}
        self._source_id = source_id
        self._locks = locks
        self._has_ceiling = ceiling

    def __repr__(self) -> str:
        return f"<Verifier source_id={self._source_id!r} locks={self._locks!r} keys={sorted(self._keys)!r}>"

    @classmethod
    def from_file(cls, path: str | Path, *, locks: str = "*", ceiling: bool = True) -> "Verifier":
        """Return a verifier with the keys and the source id of a file that `fencelock keys export` wrote.

        ConfigError if it is no such file, or if others than its owner may read it.
        """
        source_id, keys = read_keys(Path(path))
        return cls(keys, source_id=source_id, locks=locks, ceiling=ceiling)

    def verify(self, text: str, *, mark: int | None = None) -> Sequencer:
        """Return the sequencer in the text, after checking its signature, source, lock and token.

        `mark` is the highest token that you have accepted for the lock, if you keep one: it alone makes this fencing.
        ConfigError for a text that is not a sequencer; ForgedSequencerError for a signature that is missing, wrong, or
        of an unknown or retired key; WrongLockError; ImplausibleTokenError; StaleTokenError below the mark.
        """
        sequencer = Sequencer.parse(text)
        self._check_signature(sequencer)
        if sequencer.source_id != self._source_id or not covers(self._locks, sequencer.lock):
            raise WrongLockError(
                f"the sequencer is of lock {sequencer.lock!r} of source {sequencer.source_id}; accepted is "
                f"{self._locks!r} of source {self._source_id}"
            )
        ceiling = token_ceiling(time.time(), mark or 0)
        if self._has_ceiling and sequencer.token > ceiling:
            raise ImplausibleTokenError(
                f"no source can have issued token {sequencer.token} by now: {ceiling} is the highest. Find who made it",
                token=sequencer.token,
                ceiling=ceiling,
                resource=sequencer.lock,
            )
        if mark is not None and sequencer.token < mark:
            raise StaleTokenError(
                f"token {sequencer.token} of lock {sequencer.lock!r} is below mark {mark}: a newer holder was here. "
                f"Stop, and acquire the lock again",
                token=sequencer.token,
                mark=mark,
                resource=sequencer.lock,
            )
        return sequencer

    def _check_signature(self, sequencer: Sequencer) -> None:
        if sequencer.key_id == UNSIGNED:
            raise ForgedSequencerError(
                "the sequencer is not signed: its source has no key, so anybody can have made it"
            )
        key = self._keys.get(sequencer.key_id)
        if key is None or key.retired_s is not None:
            what = "unknown here" if key is None else "retired"
            raise ForgedSequencerError(
                f"the sequencer is signed with key {sequencer.key_id}, which is {what}: get the source's present keys, "
                f"or acquire the lock again"
            )
        if not hmac.compare_digest(_signature(sequencer, key), sequencer.signature):
            raise ForgedSequencerError(
                f"the signature is not the one that key {sequencer.key_id} makes of this sequencer: it was changed on "
                f"the way, or forged"
            )


# --- the file of keys -------------------------------------------------------------------------------------------------
def write_keys(path: Path, source_id: str, keys: Iterable[SigningKey]) -> None:
    """Write keys to a new file that only its owner may read; FileExistsError if the file exists."""
    written = [
        {
            "key_id": key.key_id,
            "secret": key.secret.hex(),
            "not_before_s": key.not_before_s,
            "retired_s": key.retired_s,
        }
        for key in keys
    ]
    with open(path, "x", encoding="ascii", opener=partial(os.open, mode=0o600)) as file:
        json.dump({"source_id": source_id, "keys": written}, file, indent=1)
        file.write("\n")


def read_keys(path: Path) -> tuple[str, tuple[SigningKey, ...]]:
    """Return the source id and the keys of a file that `write_keys` wrote."""
    try:
        with path.open(encoding="ascii") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(f"{path} holds keys, and others than its owner may use it: run chmod 600 on it")
            found = json.load(file)
        keys = [
            SigningKey(one["key_id"], bytes.fromhex(one["secret"]), one["not_before_s"], one["retired_s"])
            for one in found["keys"]
        ]
        return str(found["source_id"]), tuple(keys)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        # Without the cause, which may show a part of a secret.
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not a file that `fencelock keys export` wrote") from None
