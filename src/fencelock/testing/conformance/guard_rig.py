"""The base class of the guard checks: made-up sequencers, and a store with two tables.

Promise: the checks use the public `Guard` or its async twin on the store under test, and call the kit's methods for
everything that the store's own client must do.
"""

import inspect
from contextlib import closing
from typing import Any

from fencelock import Event, Hooks, Mark, Sequencer, SourceInfo
from fencelock.protocol import (
    AuditEntry,
    Begin,
    Commit,
    Floor,
    GuardCapabilities,
    GuardFlow,
    GuardStore,
    InspectResources,
    PurgeMarks,
    ResourceReport,
    ask,
    draw_claim,
    one_way,
    run_generator,
)
from fencelock.testing.conformance.rig import Rig
from fencelock.testing.runners import AsyncRunner, HolderCredential, async_guard, guard_store, sync_guard

LOCK = "lock"


class GuardRig(Rig):
    """A fresh store for each check. Subclass it through `GuardConformance`, and define its first four methods."""

    is_async = False
    """Whether the checks use the async guard, in tasks."""
    tables: tuple[str, str] = ("red", "blue")
    """Two tables, or other units that the store protects separately; `make_url` creates them."""
    observes = True
    """Whether a store that enforces can count such writes instead of refusing them."""
    compares_reads = False
    """Whether a block is refused at its end if what it has read was written since; then define `read`."""
    interrupted_files: tuple[str, ...] = ()
    """Parts of the names of the files, of the store and of its client library, in which a check raises what a signal
    handler may raise. Empty: that check is left out.
    """
    url: str
    capabilities: GuardCapabilities
    source_id: str
    history_id: str
    loop: AsyncRunner | None

    # --- defined by the store's author--------------------------------------------------------------------------------
    def make_url(self) -> str:
        """Return the URL of a fresh store with the two tables, both empty. `self.folder` is private to the check."""
        raise NotImplementedError("define make_url(self) -> str: the URL of a fresh store")

    def put(self, native: Any, table: str, key: str, value: str) -> None:
        """Write a value through the connection that `guard.transaction` yields."""
        raise NotImplementedError("define put(self, native, table, key, value): how to write")

    async def put_async(self, native: Any, table: str, key: str, value: str) -> None:
        """Write through the connection that the async guard yields; define it if that connection has another type."""
        self.put(native, table, key, value)

    def read(self, native: Any, table: str, key: str) -> str | None:
        """Return a value or None, through the connection that `guard.transaction` yields."""
        raise NotImplementedError("define read(self, native, table, key): how a block reads")

    def put_alone(self, table: str, key: str, value: str) -> None:
        """Write a value as a client that does not use the guard; raise the store's error if it refuses."""
        raise NotImplementedError("define put_alone(self, table, key, value): how a client without the guard writes")

    def get(self, table: str, key: str) -> str | None:
        """Return a committed value or None, as a client that does not use the guard."""
        raise NotImplementedError("define get(self, table, key): how to read")

    def lose_mark(self, resource: str) -> None:
        """Delete a mark as an eviction, or somebody's mistake, does; define it where no seal creates one."""
        raise NotImplementedError("define lose_mark(self, resource): how a mark gets lost")

    def wire(self) -> tuple[Any, str] | None:
        """Return an object, and the name of its method that sends one request of the store's client and returns the
        answer: below the client library's own retries, so that it is called once for each sending. None, where no
        request may be lost alone, or a transaction holds locks: the checks of lost and late requests are left out.
        """
        return None

    def lost_reply(self) -> Exception:
        """Return what that method raises if no answer comes."""
        raise NotImplementedError("define lost_reply(self): the error for an answer that does not come")

    def make_careless_store(self) -> GuardStore | None:
        """Return a store at a server that does not keep what the guard relies on; None: no such server is at hand."""
        return None

    def make_store(self, url: str) -> GuardStore:
        """Return the store of a URL; override it for a store that is not registered."""
        return guard_store(url)

    # --- around each check --------------------------------------------------------------------------------------------
    def setup_method(self) -> None:
        """Create a fresh store."""
        super().setup_method()
        self.url = self.make_url()
        self.source_id = draw_claim()
        self.history_id = draw_claim()
        self.claims: dict[Sequencer, str] = {}
        self.marked: set[str] = set()
        self.refused: list[Event] = []
        """Every refusal that a hook of this check's guards was told of."""
        self.tokens_drawn = 0
        self.capabilities = self.make_store(self.url).capabilities
        self.loop = AsyncRunner(self.now_us) if self.is_async else None

    def teardown_method(self) -> None:
        """Close everything that the check opened."""
        if self.loop is not None:
            self.loop.close()
        super().teardown_method()

    @property
    def enforces(self) -> bool:
        """Whether the store itself refuses writes that present no token (G6)."""
        return self.capabilities.enforced_by == "store"

    # --- used by the checks -------------------------------------------------------------------------------------------
    def sequencer(self, token: int, *, lock: str = LOCK, claim: str | None = None) -> Sequencer:
        """Return the sequencer of a tenure with this token, with a new claim unless one is given."""
        claim = claim or draw_claim()
        sequencer = Sequencer(self.source_id, self.history_id, lock, token, one_way(claim))
        self.claims[sequencer] = claim
        return sequencer

    def source_at(self, last_token: int, *, source_id: str | None = None) -> SourceInfo:
        """Return the SourceInfo of a source that has issued tokens up to this one."""
        return SourceInfo(source_id or self.source_id, 1, self.history_id, last_token, last_token)

    def guard(self, *resources: str, lock: str = LOCK, independent: bool = False) -> Any:
        """Return a guard with its own store; it guards resource `r` by default. Marks that no seal creates are made."""
        names = resources or ("r",)
        for name in () if self.capabilities.first_seal_creates else names:
            if name not in self.marked:
                self.marked.add(name)
                self.do(self.unmarked_guard(name).protect(source=self.source_at(0)))
        return self.unmarked_guard(*names, lock=lock, independent=independent)

    def unmarked_guard(self, *resources: str, lock: str = LOCK, independent: bool = False) -> Any:
        """Return a guard with its own store, of resources that may have no mark."""
        make_guard = async_guard if self.is_async else sync_guard
        hooks = Hooks(on_refused=self.refused.append)
        return make_guard(self.make_store(self.url), resources, lock, independent=independent, hooks=hooks)

    def do(self, result: Any) -> Any:
        """Return the result of a guard's method; await it if the guard is async."""
        if self.loop is not None and inspect.isawaitable(result):
            return self.loop.wait(result)
        return result

    def seal(self, guard: Any, lease: Any) -> None:
        """Seal."""
        self.do(guard.seal(lease))

    def close(self, guard: Any, lease: Sequencer) -> None:
        """Close as the holder of the lease, which has its claim."""
        self.do(guard.close(HolderCredential(lease, self.claims[lease])))

    def write(
        self,
        guard: Any,
        lease: Any,
        value: str,
        *,
        table: str | None = None,
        key: str = "k",
        once: str | None = None,
        then: Exception | None = None,
    ) -> None:
        """Write a value in its own guarded transaction; `then`, if given, is raised at the end of the block, and `once`
        is the key of what is done once.
        """
        row = (table or self.tables[0], key, value)
        if self.loop is None:
            with guard.transaction(lease, once=once) as native:
                self.put(native, *row)
                if then is not None:
                    raise then
            return

        self.loop.wait(self.write_in_task(guard, lease, row, once=once, then=then))

    async def write_in_task(
        self,
        guard: Any,
        lease: Any,
        row: tuple[str, str, str],
        *,
        once: str | None = None,
        then: Exception | None = None,
    ) -> None:
        """Write a row in a guarded transaction of the running task, as `write` does."""
        async with guard.transaction(lease, once=once) as native:
            await self.put_async(native, *row)
            if then is not None:
                raise then

    def value(self, *, table: str | None = None, key: str = "k") -> str | None:
        """Return the committed value."""
        return self.get(table or self.tables[0], key)

    def mark(self, resource: str = "r") -> Mark:
        """Return a resource's mark, read through a new client."""
        return self.do(self.guard(resource).mark())  # type: ignore[no-any-return]

    def protect(self, *, mode: str = "enforce", source: SourceInfo | None = None) -> Any:
        """Protect the first table as resource `r`; return its guard."""
        guard = self.guard()
        self.do(guard.protect(self.tables[0], mode=mode, source=source))
        return guard

    def seen(self) -> ResourceReport:
        """Return the store's report on resource `r`."""
        return self.run(ask(InspectResources("r")))  # type: ignore[no-any-return]

    def purge(self, marks: tuple[Mark, ...]) -> int:
        """Purge those of these marks that may go, and return how many went."""
        highest = max((mark.token for mark in marks), default=0)
        entry = AuditEntry("purge", "", highest, highest, "the kit", "a check")
        with closing(self.make_store(self.url).connect()) as connection:
            connection.perform(Begin())
            count = connection.perform(PurgeMarks(marks, Floor(self.source_id, highest), entry))
            connection.perform(Commit())
            assert isinstance(count, int)
        self.marked.clear()  # Where no seal creates a mark, those that went are needed again.
        return count

    def run(self, flow: GuardFlow[Any]) -> Any:
        """Run a flow of requests through a new client of the store, and roll back what it left open."""
        connection = self.make_store(self.url).connect()
        try:
            return run_generator(flow, connection.perform)
        finally:
            connection.rollback()
            connection.close()
