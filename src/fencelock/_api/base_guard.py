"""What the sync and the async guard share.

Promise: making one opens nothing; a guard is never copied.
"""

from typing import Self

from fencelock._api.advice import MADE_BY_GUARD, advised
from fencelock._api.guard_core import GuardCore
from fencelock._api.uncopyable import Uncopyable
from fencelock._api.validation import scope_at
from fencelock._flows.tenure import Scope
from fencelock.errors import ConfigError
from fencelock.hooks import Hooks, check_hooks
from fencelock.model import check_resource_name
from fencelock.protocol.stores import GuardCapabilities, GuardStore


class BaseGuard(Uncopyable):
    """What the sync and the async guard share."""

    _instead = "it has connections of its own. Use it in other threads, and make another one in other processes"

    @advised({}, MADE_BY_GUARD)
    def __init__(self, store: GuardStore, scope: Scope, hooks: Hooks) -> None:
        self._core = GuardCore(store, scope, check_hooks(hooks))

    def for_resource(self, resource: str, *, lock: str) -> Self:
        """Return a guard of another resource and lock at this one's URL; both use the same connections.

        For programs with a resource for each entity: `fencelock.guard` makes a guard with connections of its own. The
        new guard has this one's hooks, and is independent if this one is.
        """
        core = self._core
        scope = scope_at(core.store, resource, None, lock, independent=core.scope.is_independent)
        return type(self)(core.store, scope, core.hooks)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} resources={list(self.resources)!r} lock={self.lock!r}>"

    @property
    def url(self) -> str:
        """Where the resources are."""
        return self._core.store.url

    @property
    def capabilities(self) -> GuardCapabilities:
        """What the store can do: who refuses a write without a token there, and whether it seals several resources."""
        return self._core.store.capabilities

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources."""
        return self._core.scope.resources

    @property
    def lock(self) -> str:
        """The name of the lock whose holder may write to the resources."""
        return self._core.scope.lock

    def _patterns(self, resource: str | None) -> tuple[str, ...]:
        return self.resources if resource is None else (check_resource_name(resource),)

    def _own_patterns(self, resource: str | None) -> tuple[str, ...]:
        """Return what a right is to be given to; ConfigError for a resource of the guard that is read as a prefix."""
        if resource is None and (prefixes := [name for name in self.resources if name.endswith("*")]):
            raise ConfigError(
                f"a right to {prefixes[0]!r} is one to every resource whose name begins with {prefixes[0][:-1]!r}: if "
                f"you want that, name it by `resource=`; else rename the resource"
            )
        return self._patterns(resource)

    def _only_resource(self, what: str) -> str:
        if len(self.resources) != 1:
            raise ConfigError(
                f"{what} is about one resource, and this guard has {len(self.resources)}: open one for each"
            )
        return self.resources[0]


def core_of(guard: BaseGuard) -> GuardCore:
    """Return the core of a guard, for adapters; ConfigError if the argument is not a guard."""
    if not isinstance(guard, BaseGuard):
        raise ConfigError(f"guard must be a guard that fencelock.guard(…) returned, not {type(guard).__name__}")
    return guard._core  # noqa: SLF001 - this module's own.
