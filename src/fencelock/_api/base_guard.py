"""What every guard tells about itself, sync or async, without I/O."""

from fencelock._api.guard_core import GuardCore
from fencelock._flows.guarding import Scope
from fencelock.errors import ConfigError
from fencelock.hooks import Hooks
from fencelock.protocol.stores import GuardStore


class BaseGuard:
    """Enforces tokens at one or several resources of one place."""

    def __init__(self, store: GuardStore, scope: Scope, hooks: Hooks) -> None:
        self._core = GuardCore(store, scope, hooks)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} resources={list(self.resources)!r} lock={self.lock!r}>"

    @property
    def url(self) -> str:
        """Where the resources are."""
        return self._core.store.url

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources."""
        return self._core.scope.resources

    @property
    def lock(self) -> str:
        """The name of the lock whose holder may write to the resources."""
        return self._core.scope.lock

    def _only_resource(self, what: str) -> str:
        if len(self.resources) != 1:
            raise ConfigError(
                f"{what} is about one resource, and this guard has {len(self.resources)}: open one for each"
            )
        return self.resources[0]


def core_of(guard: BaseGuard) -> GuardCore:
    """Return what does a guard's work, for adapters; ConfigError if it is no guard."""
    if not isinstance(guard, BaseGuard):
        raise ConfigError(f"guard must be one that fencelock.guard(…) has made, not {type(guard).__name__}")
    return guard._core  # noqa: SLF001 - this module's own.
