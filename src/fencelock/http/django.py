"""Django: middleware of its own kind, for WSGI and ASGI alike, since Django answers 500 to what a view raises.

Promise: a guard's error in a view becomes the same problem as elsewhere, after the view's own transaction was rolled
back. The token is on none of Django's error pages: it leaves `request.META` and `request.scope` first.
"""

from collections.abc import Callable, Iterable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpResponse

from fencelock._api.base_guard import BaseGuard
from fencelock._remote.sealing import check_sync
from fencelock.errors import FencelockError
from fencelock.http.asgi import without_token
from fencelock.http.seal_route import answer_seal, answer_seal_async, is_seal
from fencelock.http.service import FencedRequest, Headers, HTTPAnswer, ServiceRules, answering, needs_token
from fencelock.http.wsgi import REQUEST_KEY, read_request


class DjangoFencingMiddleware:
    """Brings the request's sequencer to `fencelock.http.sequencer()`, and answers a guard's errors as problems.

    In settings: `MIDDLEWARE = [..., "fencelock.http.DjangoFencingMiddleware"]`. A subclass of your own sets `lock`,
    `guards` and `required`, which are those of `FencingMiddleware`.
    """

    sync_capable = True
    async_capable = True
    lock: str | None = None
    guards: Iterable[BaseGuard] = ()

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        self._rules = ServiceRules(self.lock, self.required, self.guards)
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        else:
            check_sync(self._rules.guards)

    def required(self, method: str, path: str) -> bool:
        """Return whether a request without a token is refused."""
        return needs_token(method, path)

    def __call__(self, request: Any) -> Any:
        """Answer one request; an awaitable where the application is asynchronous."""
        fenced = read_request(request.META)
        # Whatever has looked at the headers before has left a copy here, with the token.
        vars(request).pop("headers", None)
        if hasattr(request, "scope"):  # Under ASGI only.
            request.scope = without_token(request.scope)
        return self._answer_async(request, fenced) if self._is_async else self._answer(request, fenced)

    def _answer(self, request: Any, fenced: FencedRequest) -> HttpResponse:
        guards = self._rules.guards
        try:
            with answering(fenced):
                self._rules.check(fenced)
                if is_seal(guards, request.method, request.path_info):
                    return _response(answer_seal(check_sync(guards), fenced))
                return _completed(self._get_response(request), fenced)
        except FencelockError as error:
            return _answer_to(error, fenced)

    async def _answer_async(self, request: Any, fenced: FencedRequest) -> HttpResponse:
        guards = self._rules.guards
        try:
            with answering(fenced):
                self._rules.check(fenced)
                if is_seal(guards, request.method, request.path_info):
                    return _response(await answer_seal_async(guards, fenced))
                return _completed(await self._get_response(request), fenced)
        except FencelockError as error:
            return _answer_to(error, fenced)

    def process_exception(self, request: Any, error: Exception) -> HttpResponse | None:
        """Return the answer to an error of a view; None leaves it to Django."""
        fenced = request.META.get(REQUEST_KEY)
        answer = fenced.answer_to(error) if isinstance(fenced, FencedRequest) else None
        return None if answer is None else _response(answer)


def _answer_to(error: FencelockError, fenced: FencedRequest) -> HttpResponse:
    answer = fenced.answer_to(error)
    if answer is None:
        raise error
    return _response(answer)


def _response(answer: HTTPAnswer) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status)
    _replace(response, answer.headers)
    return response


def _completed(response: HttpResponse, fenced: FencedRequest) -> HttpResponse:
    _replace(response, fenced.completed(response.status_code, response.items()))
    return response


def _replace(response: HttpResponse, headers: Headers) -> None:
    for name, _ in tuple(response.items()):
        del response[name]
    for name, value in headers:
        response[name] = value
