"""Sessions of requests: an adapter around each of the session's own.

Promise: every request passes the adapter, those of redirects and of authentication too. The token is in the copy that
the inner adapter sends, and in no request that the caller, its hooks or an error gets to see. Never: a request that was
sent, sent once more by urllib3.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.exceptions import ChunkedEncodingError, ConnectTimeout, RequestException
from requests.utils import select_proxy
from urllib3.exceptions import MaxRetryError, NewConnectionError

from fencelock._remote.fields import KEY_FIELD, TOKEN_FIELD
from fencelock.errors import ConfigError
from fencelock.http.clients.rules import ClientRules, OutgoingRequest, origin_of, split_origin, wait_for_others
from fencelock.http.problems import MAX_PROBLEM_BYTES

_PIECE_BYTES = 1024
"""How much of a compressed problem is decoded at once: in older versions of urllib3 a piece may become a thousand times
as long."""


def base_url(client: requests.Session) -> None:
    """Return None: a session has no base URL."""


def fenced(client: requests.Session, rules: ClientRules) -> requests.Session:
    """Return a session that shares everything with this one but the adapters."""
    other = object.__new__(type(client))
    other.__dict__.update(client.__dict__)
    other.adapters = FencedAdapters(client.adapters, rules)
    return other


class FencedAdapters(OrderedDict[str, BaseAdapter]):
    """The adapters of a session of a lease: those that are mounted later send the token too."""

    def __init__(self, inner: Mapping[str, BaseAdapter], rules: ClientRules) -> None:
        super().__init__()
        self._rules = rules
        self.update(inner)

    def __setitem__(self, prefix: str, adapter: BaseAdapter) -> None:
        fenced_one = adapter if isinstance(adapter, FencedAdapter) else FencedAdapter(adapter, self._rules)
        super().__setitem__(prefix, fenced_one)


class FencedAdapter(BaseAdapter):
    """The adapter of a session of a lease."""

    def __init__(self, inner: BaseAdapter, rules: ClientRules) -> None:
        super().__init__()
        _check_retries(inner)
        self._inner = inner
        self._rules = rules

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send one request with the token, and return its answer if a guard has admitted it."""
        options = {"timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        outgoing = self._outgoing(request, proxies)
        try:
            outgoing.begin()
            wait_for_others(outgoing)
            return self._exchange(request, outgoing, options, is_streamed=stream)
        finally:
            outgoing.end()

    def close(self) -> None:
        """Close the inner adapter."""
        self._inner.close()

    def _exchange(
        self,
        request: requests.PreparedRequest,
        outgoing: OutgoingRequest,
        options: dict[str, Any],
        *,
        is_streamed: bool,
    ) -> requests.Response:
        response = self._sent(request, outgoing, options)
        try:
            is_problem = outgoing.may_be_problem(response.status_code, response.headers.get)
            if not is_problem:
                outgoing.check(response.status_code, response.headers.get)
            if is_problem:
                body = self._read_problem(response, outgoing)
                outgoing.check(response.status_code, response.headers.get, body)
            elif not is_streamed:
                self._read(response, outgoing)
        except BaseException:
            response.close()
            raise
        return response

    def _outgoing(self, request: requests.PreparedRequest, proxies: Any) -> OutgoingRequest:
        method, url = request.method or "", request.url or ""
        scheme, host, port = split_origin(url)
        own = request.headers.get(KEY_FIELD)
        key = self._rules.key_for(method, own.decode("latin-1") if isinstance(own, bytes) else own)
        if key is not None:
            # In the caller's request: authentication and redirects send it again, with the same key.
            request.headers[KEY_FIELD] = key
        path = request.path_url.partition("?")[0]
        is_proxied = select_proxy(url, proxies) is not None
        origin = origin_of(scheme, host, port)
        return OutgoingRequest(self._rules, method, origin, path, key, is_proxied=is_proxied)

    def _sent(
        self, request: requests.PreparedRequest, outgoing: OutgoingRequest, options: dict[str, Any]
    ) -> requests.Response:
        # A copy, since the library keeps the original in its responses, errors and hooks: the token must be in none.
        sent = request.copy()
        sent.headers.update(outgoing.fields())
        try:
            response = self._inner.send(sent, stream=True, **options)
        except RequestException as error:
            # An adapter that others made may have sent the request before, and lost the answer.
            is_definite = type(self._inner).send is HTTPAdapter.send and _was_not_sent(error)
            raise outgoing.not_sent(error) if is_definite else outgoing.unanswered(error) from error
        finally:
            del sent.headers[TOKEN_FIELD]
        response.request = request
        # Digest authentication sends its second request by what it finds here.
        response.connection = self  # type: ignore[assignment]
        return response

    @staticmethod
    def _read_problem(response: requests.Response, outgoing: OutgoingRequest) -> bytes | None:
        """Return the decoded body, and keep it for the caller; None if it is longer than a problem."""
        body = b""
        try:
            for piece in response.iter_content(_PIECE_BYTES):
                body += piece
                if len(body) > MAX_PROBLEM_BYTES:
                    return None
        except (ChunkedEncodingError, requests.ConnectionError) as error:
            raise outgoing.unanswered(error) from error
        # There is no public way to give back what was read.
        response._content = body  # noqa: SLF001
        return body

    @staticmethod
    def _read(response: requests.Response, outgoing: OutgoingRequest) -> None:
        try:
            _ = response.content
        except (ChunkedEncodingError, requests.ConnectionError) as error:
            raise outgoing.unanswered(error) from error


def _check_retries(adapter: BaseAdapter) -> None:
    """Raise ConfigError if the adapter would send a request again whose answer was lost."""
    retries = adapter.max_retries if isinstance(adapter, HTTPAdapter) else None
    if retries is None or (retries.total is not None and not retries.total):
        return
    if any(count is None or count for count in (retries.read, retries.status, retries.other)):
        raise ConfigError(
            "this session's adapter sends a request again whose answer was lost, so that nobody could tell whether it "
            "took effect: allow it to repeat connections only, Retry(connect=3, read=0, status=0, other=0, "
            "respect_retry_after_header=False), and repeat a request yourself, with the idempotency_key of its error"
        )


def _was_not_sent(error: RequestException) -> bool:
    """Return whether the connection was never made, of an adapter that repeats nothing but connections."""
    if isinstance(error, ConnectTimeout):
        return True
    reason = error.args[0] if error.args else None
    return isinstance(reason, MaxRetryError) and isinstance(reason.reason, NewConnectionError)
