"""What tests of Redis's guard share: a resource with a mark, its holder, and how to lose what passes."""

from typing import Any

import fencelock
from fencelock import Hooks
from fencelock.stores.redis.connection.client import PROBE
from tests.redis.fix_redis import Corner
from tests.support.guarded_keys import Loss
from tests.support.guards import LOCK, RESOURCE, HandmadeLease


def protect(url: str, *resources: str) -> None:
    """Make the marks of resources, as an operator does once."""
    for resource in resources or (RESOURCE,):
        fencelock.guard(url, resource=resource, lock=LOCK).protect()


class Scene:
    """A guarded resource, its holder, and a client that bypasses the guard."""

    def __init__(self, corner: Corner, *, url: str | None = None) -> None:
        self.corner = corner
        self.url = url or corner.url
        self.direct = corner.direct
        self.lease = HandmadeLease(5)
        self.told: list[Any] = []
        protect(self.url)
        hooks = Hooks(on_refused=self.told.append, on_sealed=self.told.append)
        self.guard = fencelock.guard(self.url, resource=RESOURCE, lock=LOCK, hooks=hooks)

    def key(self, name: str) -> str:
        return self.corner.key(name)

    def block(self, lease: Any = None) -> Any:
        return self.guard.transaction(lease or self.lease)

    def write(self, *commands: tuple[Any, ...], lease: Any = None) -> None:
        """Run commands in a block."""
        with self.block(lease) as txn:
            for command in commands:
                txn.execute(*command)

    def value(self, name: str) -> str | None:
        return self.direct.get(self.key(name))

    def names(self) -> list[str]:
        """Return the names of the data."""
        return [name.removeprefix(":") for name in self.direct.keys(self.corner.prefix) if name.startswith(":")]

    def mark_key(self) -> str:
        return self.corner.own(f"marks/{RESOURCE}")


def watch(guard: Any, loss: Loss, error: Exception) -> Loss:
    """Have what a guard sends pass through the loss, and return it; what examines a server at first does not."""
    store = guard._core.store
    connect, connect_async = store.connect, store.connect_async

    def lossy() -> Any:
        connection = connect()
        act = connection._send.__self__._act

        def lossy_act(step: Any) -> Any:
            if getattr(step, "commands", PROBE) is PROBE:
                return act(step)
            return loss(lambda: act(step), error)

        connection._send.__self__._act = lossy_act
        return connection

    def lossy_async() -> Any:
        connection = connect_async()
        act = connection._send.__self__._act

        async def lossy_act(step: Any) -> Any:
            """Lose a request before it is sent, or its reply when it has come."""
            if getattr(step, "commands", PROBE) is PROBE:
                return await act(step)
            if not loss.is_done:
                loss(lambda: None, error)
                return await act(step)
            answer = await act(step)
            return loss(lambda: answer, error)

        connection._send.__self__._act = lossy_act
        return connection

    store.connect, store.connect_async = lossy, lossy_async
    return loss
