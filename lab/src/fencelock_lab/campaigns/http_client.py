"""The client of a service under attack: a text at each URL, which GET returns and PUT replaces.

It is written by hand after docs/reference/http.md, as a client in another language is, and for one thing that no client
library offers: a PUT that stands still between its header and the end of its body. There a service is stale that has
compared the token and acts when the body has come.

Promise: each request has a connection of its own. A request whose answer does not come, or is not the service's, may
have taken effect. Never: a token sent over plain HTTP to another machine, or an answer believed that names no mark.
"""

import http.client
import json
import re
import select
import ssl
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

import fencelock
from fencelock_lab.campaigns.target import Proof

REQUEST_TIMEOUT_S = 10.0
"""How long one answer may take: longer than the faults of a campaign, which are a few ttls."""
TEXT = "text/plain; charset=utf-8"
_BEGIN_S = 0.1
"""How long a service may take to say that it wants the body; one that never says it gets the body all the same."""
_MARK = re.compile(r'"([0-9]+)";seal="([0-9a-f]+)"')
_UNFENCED = 428
_ERRORS: dict[str, type[fencelock.FencelockError]] = {
    "seal-lost": fencelock.SealLostError,
    "token-collision": fencelock.TokenCollisionError,
    "wrong-lock": fencelock.WrongLockError,
    "unavailable": fencelock.SourceUnavailableError,
    "block-lost": fencelock.BlockLostError,
} | dict.fromkeys(
    ("guard-refused", "token-required", "malformed-token", "implausible-token", "forged-sequencer", "missing-right"),
    fencelock.GuardError,
)
"""The kinds of problems, beside a stale token, after which a request has certainly had no effect."""
_Answer = tuple[http.client.HTTPResponse, bytes]


class HTTPTexts:
    """The texts below one URL, for one process and one lock. Making one connects to nothing."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        _check(url)
        self._path = parts.path.rstrip("/")
        self._host, self._port = parts.hostname or "", parts.port
        # The system's authorities, or those that SSL_CERT_FILE names.
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        self._token = 0
        self._seals: set[str] = set()

    def read(self, proof: Proof, resource: str) -> str:
        """Return a text; the errors are those of a guard."""
        with self._asking("GET", resource, 0, self._fields(proof)) as connection:
            return self._admitted(_answer(connection)).decode()

    def write(self, proof: Proof, resource: str, text: str) -> None:
        """Replace a text."""
        with self.writing(proof, resource, text):
            pass

    @contextmanager
    def writing(self, proof: Proof, resource: str, text: str) -> Iterator[None]:
        """Replace a text; the block runs when the header and the first half of the text are sent."""
        body = text.encode()
        fields = self._fields(proof) | {"Idempotency-Key": f'"{uuid.uuid4()}"', "Content-Type": TEXT}
        half = len(body) // 2
        with self._asking("PUT", resource, len(body), fields | {"Expect": "100-continue"}) as connection:
            # Whoever stands still in the block has a request that has arrived, also by way of a proxy in this process.
            select.select([connection.sock], [], [], _BEGIN_S)
            with _unknown_unless_answered():
                connection.send(body[:half])
            yield
            with _unknown_unless_answered():
                connection.send(body[half:])
            self._admitted(_answer(connection))

    def write_unfenced(self, resource: str) -> None:
        """Empty a text without a token; UnfencedWriteError if the service refuses that."""
        with self._asking("PUT", resource, 0, {"Content-Type": TEXT}) as connection:
            answer, body = _answer(connection)
        if answer.status == _UNFENCED:
            raise fencelock.UnfencedWriteError(f"{resource} refuses a request without a token")
        if not _is_success(answer):
            raise _error_of(answer, body)

    # --- one request --------------------------------------------------------------------------------------------------
    def _fields(self, proof: Proof) -> dict[str, str]:
        """Return the header fields of a request of this tenure."""
        sequencer = proof if isinstance(proof, fencelock.Sequencer) else proof.sequencer
        if sequencer.token != self._token:
            self._token, self._seals = sequencer.token, set()
        sealed = ", ".join(f'"{one}"' for one in sorted(self._seals))
        return {"Fencing-Token": f'"{sequencer}"'} | ({"Fencing-Sealed": sealed} if sealed else {})

    @contextmanager
    def _asking(
        self, method: str, resource: str, length: int, fields: dict[str, str]
    ) -> Iterator[http.client.HTTPConnection]:
        """Send the header of a request with a body of so many bytes."""
        with closing(self._connection()) as connection:
            try:
                connection.connect()
            except OSError as error:
                raise fencelock.SourceUnavailableError(f"{self._host}: {error}. Nothing was sent") from error
            with _unknown_unless_answered():
                connection.putrequest(method, f"{self._path}/{quote(resource, safe='')}")
                for name, value in {**fields, "Content-Length": str(length), "Connection": "close"}.items():
                    connection.putheader(name, value)
                connection.endheaders()
            yield connection

    def _connection(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_TIMEOUT_S)
        return http.client.HTTPSConnection(self._host, self._port, timeout=REQUEST_TIMEOUT_S, context=self._context)

    def _admitted(self, told: _Answer) -> bytes:
        """Return the body of an answer that a guard has admitted; the guard's error otherwise."""
        answer, body = told
        if not _is_success(answer):
            raise _error_of(answer, body)
        marks = _MARK.findall(answer.headers.get("Fencing-Mark") or "")
        if not marks or any(int(token) != self._token for token, _ in marks):
            unfenced = fencelock.UnfencedWriteError(
                f"the service has answered token {self._token} without its Fencing-Mark: no guard has admitted the "
                f"request, or the answer is another's. Have the handler use a guard with the request's sequencer"
            )
            unfenced.definite = False
            raise unfenced
        self._seals.update(seal for _, seal in marks)
        return body


def _check(url: str) -> None:
    """Raise ConfigError unless requests with a token may be sent below the URL."""
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment or parts.username is not None:
        raise fencelock.ConfigError(
            "--guard of a service is http(s)://HOST/PATH/, without a user, a query or a fragment: each text is at a "
            "URL below it"
        )
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise fencelock.ConfigError(
            f"--guard {url}: whoever reads a token may use it, and plain HTTP shows it to the network. Use https://, "
            f"or run the service on this machine"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _unknown_unless_answered() -> Iterator[None]:
    """A block that sends or receives: what fails there may have reached the service."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise fencelock.OutcomeUnknownError(
            f"the service's answer was lost ({type(error).__name__}): the request may have taken effect"
        ) from error


def _answer(connection: http.client.HTTPConnection) -> _Answer:
    with _unknown_unless_answered(), connection.getresponse() as answer:
        if answer.length is None and not answer.chunked:
            raise http.client.IncompleteRead(b"")  # It ends where the connection does, or a part of it was lost.
        return answer, answer.read()


def _is_success(answer: http.client.HTTPResponse) -> bool:
    return answer.status // 100 == 2  # noqa: PLR2004 - the successful statuses


def _error_of(answer: http.client.HTTPResponse, body: bytes) -> fencelock.FencelockError:
    """Return the error that a problem stands for; what is none comes from something in between."""
    is_problem = answer.headers.get_content_type() == "application/problem+json"
    try:
        problem = json.loads(body if is_problem else b"")
        kind = re.split("[/:]", problem["type"])[-1]
        message = f"the service answered {answer.status} {kind}: {problem.get('detail', '')}"
        if kind == "stale-token":
            token, mark, resource = int(problem["token"]), int(problem["mark"]), str(problem["resource"])
            return fencelock.StaleTokenError(message, token=token, mark=mark, resource=resource)
        return _ERRORS[kind](message)
    except (ValueError, LookupError, TypeError, AttributeError):
        return fencelock.OutcomeUnknownError(f"the service, or something in between, answered {answer.status}")
