"""What a client of fenced services does with each request and each answer, whichever library sends it.

Promise: the token goes to the origins that were named, by TLS or within this machine, and nowhere else. A success that
no guard has admitted is an error, unless it is what was kept of the same request; an answer that was lost, or that
something in between has written, is an unknown outcome, which carries the request's key. Never: I/O; a sequencer in an
error.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from urllib.parse import urlsplit

from fencelock._api.credentials import Credential
from fencelock._remote.fields import (
    MARK_FIELD,
    REPLAYED,
    REPLAYED_FIELD,
    SEALED_FIELD,
    TOKEN_FIELD,
    encode_sealed,
    encode_string,
    read_marks,
)
from fencelock._remote.idempotency_keys import RequestKeys
from fencelock._remote.loopback import is_loopback_host
from fencelock._remote.seals import (
    SEAL_MEMORIES,
    RemoteMark,
    late_seal,
    note_admitted,
    wait_for_each,
    wait_for_each_async,
)
from fencelock.errors import (
    ConfigError,
    FencelockError,
    OutcomeUnknownError,
    SourceUnavailableError,
    UnsupportedError,
)
from fencelock.http.methods_and_paths import SAFE_METHODS, SEAL_PATH
from fencelock.http.problems import CONTENT_TYPE, MAX_PROBLEM_BYTES, decode_problem

_USER = re.compile(r"(?<=//)[^/]*@")
"""The name and the password in a URL."""
_PORTS = {"http": 80, "https": 443}
_REDIRECTION, _REFUSAL, _SERVER_ERROR = 300, 400, 500
"""The first status of each class."""
_ABSENCE = frozenset({304, 404, 410})
"""Answers without a body of their own that still say what the resource is, or that it is not there."""
_ABSENT = frozenset({404, 410})
MAX_REDIRECTED_KEYS = 1024
"""Unsafe requests whose redirects a client remembers; the oldest is forgotten first."""
FIRST_ANSWER_LIMIT_S = 60.0
"""How long requests wait for the answer to their tenure's first one."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_REDIRECTS_TO_A_PAGE = frozenset({301, 302, 303})
"""Answers to an unsafe request that stand for "done, see there": 307 and 308 ask for the request once more."""

Fields = Callable[[str], str | None]
"""The value of an answer's field, by its name in lower case; None if the answer has none."""


def origin_of(scheme: str, host: str, port: int | None) -> str:
    """Return the origin of a URL, in one form: without the port that its scheme has anyway, and with the name of the
    host as it is looked up.
    """
    scheme, host = scheme.lower(), _looked_up(host.lower().strip("[]"))
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}" if port in {None, _PORTS.get(scheme)} else f"{scheme}://{shown}:{port}"


def _looked_up(host: str) -> str:
    """Return the name of a host in ASCII (`xn--…`); a name that cannot be written so stays as it is."""
    try:
        return host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return host


def split_origin(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of a URL; ConfigError if it is not one of HTTP."""
    try:
        parts = urlsplit(url)
        found = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError:
        found = "", "", None
    if found[0] not in _PORTS or not found[1]:
        shown = url.rpartition("@")[2]
        raise ConfigError(
            f"{shown!r} does not name a service: say which ones get the token, origins=['https://reports.example'], or "
            f"give the client a base URL"
        )
    return found


class ClientRules:
    """The rules of one client of one lease. Any thread may use it."""

    def __init__(
        self, credential: Credential, urls: Iterable[str], *, is_independent: bool, allows_plain_http: bool
    ) -> None:
        self.credential = credential
        self.memory = SEAL_MEMORIES.of(credential)
        self.redirected: deque[str] = deque(maxlen=MAX_REDIRECTED_KEYS)
        self._keys = RequestKeys(credential.sequencer)
        self.is_independent = is_independent
        self._allows_plain_http = allows_plain_http
        self.origins = frozenset(map(self._checked_origin, urls))

    def _checked_origin(self, url: str) -> str:
        scheme, host, port = split_origin(url)
        if scheme == "http" and not (self._allows_plain_http or is_loopback_host(host)):
            raise ConfigError(
                f"{origin_of(scheme, host, port)} would get the token without TLS, and whoever reads it on the way can "
                f"write in the lease's name: use https, or say allow_plain_http=True"
            )
        return origin_of(scheme, host, port)

    def key_for(self, method: str, own: str | None) -> str | None:
        """Return the key to send with a request: the caller's own, or a new one for an unsafe method."""
        if own is not None or method.upper() in SAFE_METHODS:
            return own
        return encode_string(self._keys.draw())

    def lost(self, method: str, url: str, key: str | None, reason: Exception) -> FencelockError:
        """Return the error of a call that ended without an answer, outside of any request that was sent."""
        shown = _USER.sub("", url.partition("?")[0], count=1)
        return OutgoingRequest(self, method, shown, "", key).unanswered(reason)

    def allows_proxy(self, origin: str) -> bool:
        """Return whether a proxy may see the requests to an origin: by TLS it only passes them on."""
        return self._allows_plain_http or origin.startswith("https:")


class OutgoingRequest:
    """One request on its way to a service, and what its answer means. The lease's release waits for it.

    `end` follows, whatever happens after `begin`. Threads and tasks wait for `others` in between.
    """

    def __init__(
        self, rules: ClientRules, method: str, origin: str, path: str, key: str | None, *, is_proxied: bool = False
    ) -> None:
        self.origin = origin
        self.key = key
        self._rules = rules
        self._request = f"{method.upper()} {origin}{path}"
        self._is_safe = method.upper() in SAFE_METHODS
        self._is_seal = method.upper() == "POST" and path.endswith(SEAL_PATH)
        self._is_proxied = is_proxied
        self._block = object()
        self._end: Future[None] = Future()
        # Until `begin`, so that the finalizer ends nothing.
        self._is_over = True

    def __del__(self) -> None:
        """End the request here if a signal handler raised before, or in, the first line of `end`."""
        if not getattr(self, "_is_over", True):
            self.end()

    def begin(self) -> None:
        """Count the request; raise the lease's error if it is over, ConfigError or GuardError if it may not be sent."""
        with self._before_sending():
            self._check_may_send()
            self._is_over = False
            self._rules.credential.enter_guarded(self._block)

    def others(self) -> Iterator[Future[None]]:
        """Return the requests to wait for, one after the other."""
        return self._rules.memory.others(self.origin, self._end)

    def end(self) -> None:
        """Count the request out, and let the others go; an interrupted caller may repeat this."""
        self._rules.memory.first_requests.end(self.origin, self._end)
        self._rules.credential.leave_guarded(self._block)
        self._is_over = True

    @property
    def _follows_write(self) -> bool:
        """True for what a library sends by itself after a write that was redirected: it keeps the key."""
        return self.key in self._rules.redirected

    def _check_may_send(self) -> None:
        """Raise if the token may not go to this origin, or comes there too late to be a seal (G2)."""
        rules = self._rules
        # An error, not a request without the token: the service that a redirect names would answer it unfenced.
        if self.origin not in rules.origins:
            raise ConfigError(
                f"{self._request} is not sent: the token is for {', '.join(sorted(rules.origins))} only. If a "
                f"redirect or an authentication named this URL, send that request by another client; if the "
                f"service there is meant too, name it in origins=[…]"
            )
        if self._is_proxied and not rules.allows_proxy(self.origin):
            raise ConfigError(
                f"{self._request} is not sent: its proxy would get the token without TLS. Take the proxy away for this "
                f"machine's own services (NO_PROXY), or say allow_plain_http=True"
            )
        late = late_seal(rules.credential.tenure, self.origin, f"POST {self.origin}{SEAL_PATH}")
        if late is not None and not rules.is_independent:
            raise late

    @contextmanager
    def _before_sending(self) -> Iterator[None]:
        """Raise the block's error; after a redirected write it is not definite, though this request is not sent."""
        try:
            yield
        except FencelockError as error:
            self._after_write(error)
            raise

    def fields(self) -> dict[str, str]:
        """Return the fields to add to what is sent, and to nothing that is kept; the lease's error if it is over."""
        with self._before_sending():
            # Just before it is sent: the lease may have ended while the request waited for others.
            self._rules.credential.check_valid()
        told = self._rules.memory.ids(self.origin)
        token = {TOKEN_FIELD: encode_string(str(self._rules.credential.sequencer))}
        return token | {SEALED_FIELD: encode_sealed(told)} if told else token

    def may_be_problem(self, status: int, fields: Fields) -> bool:
        """Return whether the answer's body is to be read before `check`."""
        kind = (fields("content-type") or "").partition(";")[0].strip().lower()
        length = fields("content-length") or "0"
        is_short = length.isascii() and length.isdecimal() and int(length) <= MAX_PROBLEM_BYTES
        return status >= _REFUSAL and kind == CONTENT_TYPE and is_short

    def check(self, status: int, fields: Fields, body: bytes | None = b"") -> None:
        """Raise what the answer means; do nothing if a guard has admitted the request, or the answer is a refusal of
        the service's own.

        `body`: None if it is longer than a problem, so that it was not read to its end.
        """
        marks = read_marks([fields(MARK_FIELD) or ""])
        if body is None:
            self._remember(status, marks)
            raise self.unknown(f"was answered {status} with a problem of more than {MAX_PROBLEM_BYTES} bytes")
        token = self._rules.credential.sequencer.token
        if status >= _REFUSAL and (error := decode_problem(fields("content-type") or "", body, token)) is not None:
            self._remember(status, marks)
            raise self._after_write(error)
        if status >= _SERVER_ERROR:
            raise self.unknown(f"was answered {status}, and not by the service's fencing")
        if self._is_seal and status >= _REDIRECTION:
            raise UnsupportedError(
                f"{self._request} was answered {status}: no seal route is mounted there. Name the guards to the "
                f"service's middleware, guards=[guard]; if the application is under a path, the route is there"
            )
        if self._says_what_is_there(status):
            self._check_fenced(status, fields, marks)
        else:
            self._remember(status, marks)
        if marks:
            note_admitted(self._rules.credential.tenure, self.origin, is_seal=self._is_seal)
        # What the library sends to the redirect's target follows a write that is done: its errors are not definite.
        if marks and self.key is not None and status in _REDIRECTS:
            self._rules.redirected.append(self.key)

    def _says_what_is_there(self, status: int) -> bool:
        is_done = not self._is_safe and status in _REDIRECTS_TO_A_PAGE
        return status < _REDIRECTION or status in _ABSENCE or is_done

    def _check_fenced(self, status: int, fields: Fields, marks: tuple[RemoteMark, ...]) -> None:
        # A handler that answers a repeated request by itself uses no guard, so its answer has no marks.
        if self.key is not None and fields(REPLAYED_FIELD) == REPLAYED and not marks:
            return
        with self._answered(status):
            self._rules.memory.check_fenced(self.origin, marks)

    def _remember(self, status: int, marks: tuple[RemoteMark, ...]) -> None:
        with self._answered(status):
            self._rules.memory.remember(self.origin, marks)

    @contextmanager
    def _answered(self, status: int) -> Iterator[None]:
        """A block that judges an answer: what is wrong with its marks does not undo what the service did."""
        try:
            yield
        except FencelockError as error:
            hint = ". Check its path" if status in _ABSENT else ""
            error.args = (f"{self._request} was answered {status}: {error}{hint}",)
            # What is wrong with the answer's marks does not undo what an unsafe request has done.
            error.definite = error.definite and self._is_safe and not self._follows_write
            raise

    def not_sent(self, reason: Exception) -> FencelockError:
        """Return the error of a request for which no connection was made; `reason` is the library's, whose text may
        show a query.
        """
        why = type(reason).__name__
        if self._follows_write:
            return self.unknown(f"could not be sent after a redirect ({why})")
        return SourceUnavailableError(f"{self._request} was not sent, for no connection was made ({why}): try again")

    def kept_waiting(self) -> FencelockError:
        """Return the error of a request that waited too long for the first one of its tenure."""
        if self._follows_write:
            return self.unknown("was not sent after a redirect, since another one has no answer")
        return SourceUnavailableError(
            f"{self._request} was not sent: the first request to {self.origin} has no answer after "
            f"{FIRST_ANSWER_LIMIT_S:g} s. Seal the service before it is used by several threads or tasks, by POST "
            f"{self.origin}{SEAL_PATH}"
        )

    def unanswered(self, reason: Exception) -> FencelockError:
        """Return the error of a request whose answer did not arrive, or not whole."""
        return self.unknown(f"has lost its answer ({type(reason).__name__})")

    def unknown(self, what: str) -> OutcomeUnknownError:
        """Return the error of a request that may have taken effect, with its key."""
        again = "Send it again, or read what is there"
        if self.key is not None:
            again = (
                "To repeat it without doing it twice, send it with the field Idempotency-Key and this error's "
                "idempotency_key, if the service keeps keys; or read what is there"
            )
        error = OutcomeUnknownError(f"{self._request} {what}: it may have taken effect. {again}")
        error.idempotency_key = self.key
        return error

    def _after_write(self, error: FencelockError) -> FencelockError:
        """Return the error; it is not definite about a call whose unsafe request was answered by a redirect."""
        if isinstance(error, OutcomeUnknownError):
            error.idempotency_key = self.key
        error.definite = error.definite and not self._follows_write
        return error


def wait_for_others(outgoing: OutgoingRequest) -> None:
    """Wait until the request may be sent; SourceUnavailableError if another one is not answered in time."""
    try:
        wait_for_each(outgoing.others(), FIRST_ANSWER_LIMIT_S)
    except TimeoutError:
        raise outgoing.kept_waiting() from None


async def wait_for_others_async(outgoing: OutgoingRequest) -> None:
    """Wait, in a task, until the request may be sent; SourceUnavailableError if another one is not answered in time."""
    try:
        await wait_for_each_async(outgoing.others(), FIRST_ANSWER_LIMIT_S)
    except TimeoutError:
        raise outgoing.kept_waiting() from None
