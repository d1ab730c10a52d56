"""What tests of DynamoDB's guard share: a guarded resource whose mark was made."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fencelock
import fencelock.aio
from fencelock.errors import OutcomeUnknownError
from fencelock.stores.aws.clients import Call
from tests.dynamodb.fix_dynamodb import DATA, Corner
from tests.support.guarded_keys import Loss
from tests.support.guards import LOCK, RESOURCE, HandmadeLease


class Scene:
    """A guarded resource, its holder, and a client that bypasses the guard."""

    def __init__(self, corner: Corner) -> None:
        self.corner = corner
        self.url = corner.url()
        self.lease = HandmadeLease(5)
        self.guard = self.opened()
        self.guard.install()
        self.guard.protect()

    def opened(self, endpoint: str | None = None, resource: str = RESOURCE) -> Any:
        return fencelock.guard(self.corner.url(endpoint), resource=resource, lock=LOCK)

    def opened_async(self) -> Any:
        return fencelock.aio.guard(self.url, resource=RESOURCE, lock=LOCK)

    def key(self, name: str) -> dict[str, str]:
        return {"pk": self.corner.key(name)}

    def block(self, lease: Any = None) -> Any:
        return self.guard.transaction(lease or self.lease)

    def write(self, act: Callable[[Any], Any]) -> None:
        with self.block() as txn:
            act(txn)

    def put(self, txn: Any, name: str, value: Any) -> None:
        txn.put(DATA, self.key(name) | {"v": value})

    def value(self, name: str, attribute: str = "v") -> Any:
        return self.corner.value(name, attribute)

    def names(self, *names: str) -> list[str]:
        """Return those of these names under which there is an item."""
        return [name for name in names if self.value(name, "pk") is not None]


def watch(guard: Any, loss: Loss) -> Loss:
    """Have the sync guard's requests pass through the loss."""

    def through(client: Any) -> Any:
        def call(one: Call) -> Any:
            return loss(lambda: client.call(one), OutcomeUnknownError("lost on purpose"))

        return SimpleNamespace(call=call)

    _replace(guard, "make_client", through)
    return loss


def watch_async(guard: Any, loss: Loss) -> Loss:
    """Have the async guard's requests pass through the loss: one is lost before it is sent, or its reply afterwards."""

    def through(client: Any) -> Any:
        async def call(one: Call) -> Any:
            error = OutcomeUnknownError("lost on purpose")
            if not loss.is_done:
                loss(lambda: None, error)
                return await client.call(one)
            answer = await client.call(one)
            return loss(lambda: answer, error)

        return SimpleNamespace(call=call)

    _replace(guard, "make_async_client", through)
    return loss


def _replace(guard: Any, name: str, through: Callable[[Any], Any]) -> None:
    store = guard._core.store
    make_client = getattr(store, name)
    setattr(store, name, lambda: through(make_client()))
