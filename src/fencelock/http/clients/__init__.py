"""Clients of fenced services: httpx, httpx2, requests and aiohttp, each in a module of its own.

Promise: only the module of the library whose client the caller passes is loaded. The caller's own client stays as it
was, and its connections are shared.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, TypeVar, cast

from fencelock._api.credentials import LeaseLike, credential_of
from fencelock.errors import ConfigError, MissingDependencyError
from fencelock.http.clients.rules import ClientRules

_RULES = "_fencelock_rules"
"""The attribute of a client of a lease that keeps its rules."""
_MODULES = {"httpx": "httpx", "httpx2": "httpx", "requests": "requests", "aiohttp": "aiohttp"}


class HTTPClient(Protocol):
    """What the clients of these libraries have in common, for type checkers."""

    @property
    def headers(self) -> object:
        """The fields that the client sends with each request."""


AnyClient = TypeVar("AnyClient", bound=HTTPClient)


class _Module(Protocol):
    def fenced(self, client: object, rules: ClientRules) -> object: ...
    def base_url(self, client: object) -> str | None: ...


def client(
    lease: LeaseLike,
    client: AnyClient,
    *,
    origins: Iterable[str] = (),
    independent: bool = False,
    allow_plain_http: bool = False,
) -> AnyClient:
    """Return a client like this one whose requests carry the lease's token, and whose answers prove that a guard has
    admitted it.

    `client` is an httpx.Client, an httpx.AsyncClient, the same of httpx2, a requests.Session or an
    aiohttp.ClientSession. It stays as it is; the new one takes over its settings and shares its connections and
    cookies, and closing either closes the connections of both. `origins` are the services that get the token, as
    `https://reports.example`; without any it is the client's base URL. A request or a redirect to any other one raises
    ConfigError.
    `independent=True`: what is written to these services depends on nothing that is read elsewhere.
    `allow_plain_http=True` sends the token without TLS beyond this machine.

    The methods of the new client raise, besides the library's own errors: the lease's error if it is over, before
    anything is sent; the errors of a guard, as a guard in this process would; UnfencedWriteError if an answer has no
    mark of this lease; SourceUnavailableError if no connection was made; OutcomeUnknownError, with an
    `idempotency_key` to repeat the request, if the answer was lost or comes from something in between.
    """
    module = _module_of(client)
    rules = ClientRules(
        credential_of(lease),
        [origins] if isinstance(origins, str) else list(origins) or [module.base_url(client) or ""],
        is_independent=independent,
        allows_plain_http=allow_plain_http,
    )
    fenced = module.fenced(client, rules)
    vars(fenced)[_RULES] = rules
    return cast("AnyClient", fenced)


def _module_of(client: object) -> _Module:
    """Return the module for the library whose client, or whose client's subclass, this is."""
    if _RULES in getattr(client, "__dict__", ()):
        raise ConfigError("this client carries a lease's token already: pass the one that it was made from")
    for parent in type(client).__mro__:
        root = parent.__module__.partition(".")[0]
        if root in _MODULES:
            return _loaded(root)
    raise ConfigError(
        f"pass a client of httpx, httpx2, requests or aiohttp, such as httpx.Client(base_url=…), not "
        f"{type(client).__name__}"
    )


def _loaded(library: str) -> _Module:
    try:
        return cast("_Module", import_module(f"fencelock.http.clients.{_MODULES[library]}"))
    except ImportError as error:
        raise MissingDependencyError(
            f"fencelock.http.client needs a newer {library} ({error}): pip install --upgrade {library}"
        ) from error
