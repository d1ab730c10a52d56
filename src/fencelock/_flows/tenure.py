"""What a guard watches over, and what a tenure remembers of the guards that it used.

Promise: a tenure never seals a resource after it has read from another one, unless its guard is independent (G2), and
remembers each seal of its own whose commit was confirmed (G9). Never: a memory taken back.
"""

from collections.abc import Collection

from fencelock.errors import GuardError

MAX_SEALS = 1024
"""Resources that one tenure may seal, over all its guards."""

Key = tuple[str, str]
"""A guard's URL and the name of one of its resources."""


class Scope:
    """What one guard watches over: resources at one URL, which the holder of one lock may write.

    `keys` identify the resources in a tenure's memory, among the resources of all its guards. `first_seal_creates` is
    the store's: elsewhere a resource without a mark refuses every lease.
    """

    __slots__ = ("first_seal_creates", "is_independent", "keys", "lock", "resources", "url")

    def __init__(
        self,
        url: str,
        resources: tuple[str, ...],
        lock: str,
        *,
        is_independent: bool = False,
        first_seal_creates: bool = True,
    ) -> None:
        self.url = url
        self.resources = resources
        self.lock = lock
        self.is_independent = is_independent
        self.first_seal_creates = first_seal_creates
        self.keys: tuple[Key, ...] = tuple((url, resource) for resource in resources)

    def bound_to(self, lock: str) -> "Scope":
        """Return the same scope for another lock."""
        kept = {"is_independent": self.is_independent, "first_seal_creates": self.first_seal_creates}
        return Scope(self.url, self.resources, lock, **kept)

    def keys_without(self, resources: Collection[str]) -> tuple[Key, ...]:
        """Return the keys of all but these resources."""
        return tuple(key for key in self.keys if key[1] not in resources)


class Tenure:
    """What one tenure remembers of its guards: the resources that it opened and sealed, and whether it has begun to
    read.

    `opened` are the resources whose guards it used, `sealed` those of them that admitted it. They differ where observe
    mode let a refusal pass. Any thread of the tenure may use it: each change is one step of the interpreter, and
    nothing is ever removed.
    """

    __slots__ = ("__weakref__", "has_read", "opened", "sealed")

    def __init__(self) -> None:
        self.opened: set[Key] = set()
        self.sealed: set[Key] = set()
        self.has_read = False

    def has_opened(self, key: Key) -> bool:
        """Return whether this tenure has used a guard of the resource."""
        return key in self.opened

    def has_sealed(self, *keys: Key) -> bool:
        """Return whether this tenure remembers that it has sealed each of these resources."""
        return self.sealed.issuperset(keys)

    def check_may_open(self, keys: tuple[Key, ...], *, is_independent: bool) -> None:
        """Raise GuardError if one of these resources would be sealed after another was read (G2)."""
        late = [key[1] for key in keys if not self.has_opened(key)]
        if self.has_read and late and not is_independent:
            raise GuardError(
                f"resource {late[0]!r} would be sealed after this tenure has read from another one: a stale write "
                "could land in it in between. Seal all before the first read, by one guard(resources=[…]) or by "
                "guard.seal(lease) on each; say independent=True if nothing written to it depends on what was "
                "read elsewhere"
            )
        if len(self.opened) + len(late) > MAX_SEALS:
            raise GuardError(f"one tenure may seal {MAX_SEALS} resources at most: protect more tables by one resource")

    def remember(self, opened: tuple[Key, ...], sealed: tuple[Key, ...]) -> None:
        """Remember seals whose commit was confirmed, and resources that were opened without one."""
        self.opened.update(opened)
        self.sealed.update(sealed)

    def begin_reading(self, admitted: tuple[Key, ...]) -> None:
        """Note that a transaction reads from here on, to which these resources have admitted the tenure."""
        self.has_read = True
