"""A source in documents at a real server, whose dates and clock a test moves by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from fencelock.stores.document.operations import FoundDocuments
from fencelock.stores.document.store import DocumentSource

BEGAN_MS = 1_800_000_000_000
AnySource = TypeVar("AnySource", bound=DocumentSource)


def moved(make: Callable[..., AnySource], url: str, now_us: Callable[[], int]) -> AnySource:
    """Return a source whose replies have the dates of a clock, in whole seconds as a server's."""
    store = make(url, now_us=now_us, longest_wait_ms=10)
    store.capabilities = replace(store.capabilities, ttl_min_ms=1)
    open_client, open_async_client = store.open_client, store.open_async_client

    def dated(reply: Any) -> Any:
        if not isinstance(reply, FoundDocuments) or not reply.documents:
            return reply
        assert reply.date_ms is not None
        return reply._replace(date_ms=(BEGAN_MS + now_us() // 1000) // 1000 * 1000)

    def open_dated(request_timeout_s: float) -> Any:
        client: Any = open_client(request_timeout_s)
        perform = client.perform
        client.perform = lambda operation: dated(perform(operation))
        return client

    def open_dated_async(request_timeout_s: float) -> Any:
        client: Any = open_async_client(request_timeout_s)
        perform = client.perform

        async def perform_dated(operation: Any) -> Any:
            return dated(await perform(operation))

        client.perform = perform_dated
        return client

    store.open_client, store.open_async_client = open_dated, open_dated_async  # type: ignore[method-assign]
    return store
