"""`Once`: a job that is done once per key and resource, and the result that its block sets.

Promise: the key, the digest of the request and the result are checked here, in one way for guarded blocks and for
`dispatch`. The request itself is kept nowhere. Never: a decision whether the job was done.
"""

from hashlib import sha256

from fencelock._api.uncopyable import Uncopyable
from fencelock._flows.tenure import Scope
from fencelock.errors import ConfigError
from fencelock.model import Sequencer, check_name, default_holder
from fencelock.protocol.guard_requests import MAX_KEY_BYTES, MAX_RESULT_BYTES, Effect


class Once(Uncopyable):
    """A job that a guarded block does once: its key, a digest of the request, and its result.

    `key` is text of 1 to 512 bytes of UTF-8, and belongs to the guard's one resource.
    `guard.transaction(lease, once=Once("2026-11-22"))`, or only the key if there is no result to keep. Set `result`
    inside the block: it is committed with the work, and a later caller gets it as AlreadyDoneError.result.
    `request` is what was asked for, text or bytes: with a digest of it, a key that is used again for something else is
    KeyReusedError, not taken for done. Use one object for each block.
    """

    _instead = "it has one block's result. Make another one"
    __slots__ = ("_result", "key", "request_digest")

    def __init__(self, key: str, *, request: str | bytes = b"") -> None:
        self.key = check_name(key, what="key", limit_bytes=MAX_KEY_BYTES)
        self.request_digest = _digest(request)
        self._result = ""

    def __repr__(self) -> str:
        return f"<Once key={self.key!r}>"

    @property
    def result(self) -> str:
        """What to keep of the job, set inside its block: at most 4096 bytes of UTF-8, or ConfigError."""
        return self._result

    @result.setter
    def result(self, result: str) -> None:
        if result != "":
            check_name(result, what="result", limit_bytes=MAX_RESULT_BYTES)
            self._check_kind(result)
        self._result = result

    def _check_kind(self, result: str) -> None:
        """Raise ConfigError for a result that cannot be given out as the answer it stands for; here, any text can."""

    def intent(self, sequencer: Sequencer) -> Effect:
        """Return the effect that is kept before the job begins."""
        return Effect(self.key, sequencer.token, default_holder(), request_digest=self.request_digest)

    def done(self, sequencer: Sequencer) -> Effect:
        """Return the effect that is kept of the job when its block ends."""
        return self.intent(sequencer)._replace(result=self._result)


def _digest(request: object) -> str:
    """Return the SHA-256 of a request; without one, the empty text."""
    if isinstance(request, str):
        try:
            request = request.encode()
        except UnicodeEncodeError:
            raise ConfigError("request contains a lone surrogate: pass text that UTF-8 can carry, or bytes") from None
    if not isinstance(request, bytes):
        raise ConfigError(f"request must be str or bytes, not {type(request).__name__}")
    return sha256(request).hexdigest() if request else ""


def once_of(once: object, scope: Scope) -> Once | None:
    """Return the job that a block's argument `once` means, None if it means none; ConfigError if it cannot be one."""
    if once is None:
        return None
    if len(scope.resources) != 1:
        raise ConfigError(
            f"a key belongs to one resource, and this guard has {len(scope.resources)}: open one for the key's resource"
        )
    if isinstance(once, Once):
        return once
    if not isinstance(once, str):
        raise ConfigError(f"once must be a key or a fencelock.Once, not {type(once).__name__}")
    return Once(once)
