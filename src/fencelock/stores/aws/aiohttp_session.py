"""What keeps aiohttp from sending a request twice.

aiohttp repeats each PUT and DELETE once whose connection ends without a reply, also if the server has executed it: the
repetition of a conditional write then refuses itself. It also follows redirects, with the headers that sign a request.

Never: a request sent again.
"""

from typing import Any

from aiobotocore.httpsession import AIOHTTPSession


class SendOnceSession(AIOHTTPSession):
    """What aiobotocore sends requests with, without repetitions."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        # aiohttp has no public setting for it; its own tests use this one.
        session._retry_connection = False  # noqa: SLF001
        return _Unredirected(session)


class _Unredirected:
    """A session that follows no redirect."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def request(self, *arguments: Any, **options: Any) -> Any:
        """Send a request once."""
        return self._session.request(*arguments, allow_redirects=False, **options)
