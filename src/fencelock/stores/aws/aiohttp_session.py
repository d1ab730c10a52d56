"""What keeps aiohttp from sending a request twice.

aiohttp repeats each PUT and DELETE once whose connection ends without a reply, also if the server has executed it: the
repetition of a conditional write then refuses itself.

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
        return session
