"""What the middleware of every framework shares: a request's fields, which requests are refused, and every answer.

Promise: the middleware never holds or compares a mark; the guard in the handler does, in the transaction of its write.
An error of that guard becomes one answer, the same in every framework, and no answer of a fenced request is cached.
Never: the token in a log, or where the handler's framework would log it.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from fencelock._api.base_guard import BaseGuard
from fencelock._api.once import Once
from fencelock._remote.current import carrying
from fencelock._remote.faults import (
    RETRY_AFTER_S,
    RefusedRequestError,
    RemoteFault,
    fault_of,
    malformed_key,
    token_required,
    wrong_lock,
)
from fencelock._remote.fields import (
    MARK_FIELD,
    MAX_KEY_CHARACTERS,
    REPLAYED,
    REPLAYED_FIELD,
    decode_string,
    encode_marks,
)
from fencelock._remote.reading import read_carried
from fencelock._remote.sealing import check_guards
from fencelock.errors import ConfigError
from fencelock.http.methods_and_paths import SAFE_METHODS
from fencelock.http.problems import CONTENT_TYPE, encode_problem
from fencelock.model import check_lock_name

if TYPE_CHECKING:
    from fencelock._remote.carried import CarriedSequencer

Required = Callable[[str, str], bool]
"""Whether a request with this method, to this path, needs a token."""
Headers = list[tuple[str, str]]

SERVER_ERROR = 500
_CLIENT_ERROR = 400
_OURS = frozenset({"cache-control", MARK_FIELD, REPLAYED_FIELD})
logger = logging.getLogger("fencelock")


class HTTPAnswer(NamedTuple):
    """An answer of the middleware itself."""

    status: int
    headers: Headers
    body: bytes


class FencedRequest:
    """One request: its sequencer, if it came with one, and what its idempotency key stands for."""

    __slots__ = ("_is_replayed", "carried", "keys", "refusal", "target")

    def __init__(
        self, target: tuple[str, str, str], tokens: Sequence[str], sealed: Sequence[str], keys: Sequence[str]
    ) -> None:
        """`target`: the method, the path and the query; the others are the values of the request's fields."""
        self.target = target
        self.keys = keys
        self.carried: CarriedSequencer | None = None
        self.refusal: RefusedRequestError | None = None
        """Why the fields are not understood."""
        self._is_replayed = False
        try:
            self.carried = read_carried(tokens, sealed)
        except RefusedRequestError as error:
            self.refusal = error

    def completed(self, status: int, headers: Iterable[tuple[str, str]]) -> Headers:
        """Return the header of an answer that begins now: with the marks, and never to be cached.

        GuardError if it is the success of a write whose block is still open.
        """
        if self.carried is None:
            return list(headers)
        is_success = status < _CLIENT_ERROR
        # A success that begins before the block's COMMIT would tell of a write that may still fail.
        if is_success and self.target[0] not in SAFE_METHODS:
            self.carried.check_no_block_is_open()
        marks = self.carried.begin_answer(is_success=is_success)
        kept = [(name, value) for name, value in headers if name.lower() not in _OURS]
        told = [(MARK_FIELD, encode_marks(marks))] if marks else []
        told += [(REPLAYED_FIELD, REPLAYED)] if self._is_replayed else []
        return [*kept, *told, ("cache-control", "no-store")]

    def answer_to(self, error: BaseException) -> HTTPAnswer | None:
        """Return the answer to an error of the handler; None if it is not about the request's sequencer."""
        fault = fault_of(error, self.carried)
        if fault is None:
            return None
        if fault.kind == "already-done":
            return self._answer_again(fault.fields["result"])
        if fault.status >= SERVER_ERROR and self.carried is not None:
            # The caller is told no more than the kind: the rest is about the inside of the service.
            what = (fault.kind, self.target[0], self.carried.lock, self.carried.token)
            logger.error("answering %s to a %s request of lock %r, token %d", *what, exc_info=error)
        return self._answer_fault(fault)

    def _answer_fault(self, fault: RemoteFault) -> HTTPAnswer:
        headers = [("content-type", CONTENT_TYPE)]
        if fault.status == 503:  # noqa: PLR2004 - the only status that asks for a retry.
            headers.append(("retry-after", str(RETRY_AFTER_S)))
        return self._answer(fault.status, headers, encode_problem(fault))

    def _answer_again(self, result: str) -> HTTPAnswer:
        """Answer with what the handler has kept of the same request: JSON, or nothing."""
        body = result.encode()
        head = [("content-type", "application/json")] if body else []
        self._is_replayed = True
        return self._answer(200 if body else 204, head, body)

    def answer_sealed(self) -> HTTPAnswer:
        """Answer that every guard of the request's lock has sealed its resources."""
        return self._answer(204, [], b"")

    def _answer(self, status: int, headers: Headers, body: bytes) -> HTTPAnswer:
        length = [] if status == 204 else [("content-length", str(len(body)))]  # noqa: PLR2004 - no content.
        head = self.completed(status, [*headers, *length])
        if self.carried is None:
            head.append(("cache-control", "no-store"))
        return HTTPAnswer(status, head, b"" if self.target[0] == "HEAD" else body)


def needs_token(method: str, path: str) -> bool:  # noqa: ARG001 - every such function has both.
    """Return whether a request may change something: each needs a token, unless a service says otherwise."""
    return method not in SAFE_METHODS


class ServiceRules:
    """What a middleware asks of requests, and the guards that its seal route seals."""

    def __init__(self, lock: str | None, required: Required, guards: Iterable[BaseGuard]) -> None:
        self.lock = None if lock is None else check_lock_name(lock)
        self._required = required
        self.guards = check_guards(guards)
        if not callable(required):
            raise ConfigError(f"required must be a callable, required(method, path), not {type(required).__name__}")

    def check(self, request: FencedRequest) -> None:
        """Raise RefusedRequestError for a request without a token that needs one, and for a token that is not right."""
        if request.refusal is not None:
            raise request.refusal
        method, path, _ = request.target
        if request.carried is None:
            if self._required(method, path):
                raise RefusedRequestError(token_required(self.lock))
        elif self.lock is not None and request.carried.lock != self.lock:
            raise RefusedRequestError(wrong_lock(request.carried.sequencer, [self.lock]))


class RequestOnce(Once):
    """The job of a request. A repeated request is answered with its result, as JSON."""

    __slots__ = ()

    def _check_kind(self, result: str) -> None:
        try:
            json.loads(result)
        except (ValueError, RecursionError):
            raise ConfigError(
                "a result of once() must be JSON, as a repeated request is answered with it as application/json: set "
                "job.result = json.dumps(…)"
            ) from None


_REQUEST: ContextVar[FencedRequest | None] = ContextVar("fencelock_request", default=None)


@contextmanager
def answering(request: FencedRequest) -> Iterator[None]:
    """A block that answers the request: `sequencer()` and `once()` are about it."""
    before = _REQUEST.set(request)
    try:
        with carrying(request.carried):
            yield
    finally:
        _REQUEST.reset(before)


def current_request() -> FencedRequest:
    """Return the request that is being answered; ConfigError outside of one."""
    request = _REQUEST.get()
    if request is None:
        raise ConfigError(
            "no request is being answered here: add fencelock's middleware to the application, and call once() in the "
            "handler, not in threads that you start yourself. A WebSocket is not fenced"
        )
    return request


def once(body: bytes | str = b"") -> Once:
    """Return the job that the request's Idempotency-Key stands for: `guard.transaction(sequencer(), once=once(body))`.

    The key belongs to the request's method, path, query and `body`: another request under the same key is refused
    (422). Set `result` to JSON inside the block, or ConfigError: a repeated request is answered with it, and the block
    does not run. A request without a key is answered 400, if nothing handles the error. ConfigError outside of a
    request.
    """
    request = current_request()
    content = body.encode() if isinstance(body, str) else body
    if not isinstance(content, bytes | bytearray | memoryview):
        raise ConfigError(
            f"once() takes the request's body, as bytes or text, not {type(body).__name__}: give it what the request "
            f"sent, or the text of what was parsed, such as once(str(amount))"
        )
    return RequestOnce(_key_of(request.keys), request=json.dumps(request.target).encode() + b"\n" + content)


def _key_of(keys: Sequence[str]) -> str:
    """Return the request's key; RefusedRequestError unless it is there, once."""
    if len(keys) != 1:
        why = "is missing: send one with each request, and the same with its retries" if not keys else "is there twice"
        raise RefusedRequestError(malformed_key(f"Idempotency-Key {why}"))
    text = keys[0].strip()
    is_bare = not text.startswith('"')
    if is_bare and "," in text:
        # WSGI, and any proxy, makes one value of a field that is there twice.
        raise RefusedRequestError(malformed_key("Idempotency-Key is there twice; if it has a comma itself, quote it"))
    try:
        # Quoted, as RFC 9651 writes a string, or bare, as many clients do.
        key = decode_string(f'"{text}"' if is_bare else text, MAX_KEY_CHARACTERS)
    except ValueError as error:
        raise RefusedRequestError(malformed_key(f"Idempotency-Key: {error}")) from None
    if not key:
        raise RefusedRequestError(malformed_key("Idempotency-Key is empty"))
    return key
