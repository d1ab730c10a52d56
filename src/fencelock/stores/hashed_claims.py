"""The claims of requests as a source keeps them, hashed twice, for the stores where the client decides.

Promise: what such a client writes, in rows, keys, nodes and file names, shows no claim and no proof (G12). A server
that decides by itself is sent the digest where a claim begins, and the claim itself to release and to renew.
"""

from typing import TypeVar

from fencelock.model import digest_of_claim
from fencelock.protocol import source_requests as ask

Request = TypeVar("Request")
_ABOUT_ONE_CLAIM = (ask.Acquire, ask.Poll, ask.Release, ask.Break)


def hash_claims(request: Request) -> Request:
    """Return the request with the digest of each claim in the claim's place."""
    if isinstance(request, _ABOUT_ONE_CLAIM):
        # Their second field is the claim; `_replace` takes five times as long.
        lock, claim, *rest = request
        return type(request)(lock, digest_of_claim(claim), *rest)
    if isinstance(request, ask.Renew):
        return ask.Renew(tuple((lock, digest_of_claim(claim)) for lock, claim in request.leases))  # type: ignore[return-value]
    return request


def restore_claims(request: ask.Renew, reply: ask.Renewed) -> ask.Renewed:
    """Return the reply to a hashed Renew, by the claims of the original request."""
    claims = {digest_of_claim(claim): claim for _, claim in request.leases}
    return ask.Renewed(
        {claims[digest]: remaining_ms for digest, remaining_ms in reply.remaining_ms.items()},
        {claims[digest]: reason for digest, reason in reply.lost.items()},
        frozenset(claims[digest] for digest in reply.in_doubt),
    )
