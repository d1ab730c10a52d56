"""The work of a guard as plain blocking calls: what the sync guard does, and the async one hands to threads.

Promise: every seal and every refusal is told to the hooks, in the thread where it happened, once the guard's own
transaction is over. Nothing here knows tasks or event loops.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from fencelock._api.credentials import Credential
from fencelock._drivers.guard import run
from fencelock._flows import admin, commit, guarding
from fencelock._flows.guarding import KINDS, Opened, Refused, Scope, Sealed
from fencelock.errors import GuardError
from fencelock.hooks import Event, Hooks, tell
from fencelock.model import Mark, SourceInfo, default_holder
from fencelock.protocol.guard_requests import Look, Seen
from fencelock.protocol.source_requests import Flow
from fencelock.protocol.stores import GuardConnection, GuardStore

Result = TypeVar("Result")
_MS_PER_S = 1000


class GuardCore:
    """One guard's store and scope, and what can be done there."""

    def __init__(self, store: GuardStore, scope: Scope, hooks: Hooks) -> None:
        self.store = store
        self.scope = scope
        self.hooks = hooks

    def run(self, flow: Flow[Result]) -> Result:
        """Run a flow on a connection of the guard's own."""
        connection = self.store.connect()
        try:
            return run(flow, connection)
        finally:
            connection.close()

    def marks(self) -> dict[str, Mark]:
        """Return the mark of every resource; token 0 for those never sealed."""
        return self.run(self.looking())

    def is_sealed(self, proof: Credential) -> bool:
        """Tell whether this tenure has sealed every resource, so that the store need not be asked."""
        return proof.sequencer.lock == self.scope.lock and proof.tenure.sealed.issuperset(self.scope.keys)

    def seal(self, proof: Credential) -> None:
        """Seal every resource."""
        with self.telling(proof):
            sealed = self.run(self.sealing(proof))
        self.tell_sealed(proof, sealed)

    def check(self, proof: Credential, connection: GuardConnection, *, may_raise: bool) -> None:
        """Check the marks inside the caller's transaction, or raise them there."""
        with self.telling(proof):
            sealed = run(self.checking(proof, may_raise=may_raise), connection)
        self.tell_sealed(proof, sealed)

    def close(self, proof: Credential) -> None:
        """Make the lease's own token stale."""
        self.run(self.closing(proof))

    def rebind(self, lock: str, source: SourceInfo, reason: str) -> None:
        """Bind every resource to another lock, and this guard with them."""
        self.run(admin.rebind(self.scope, lock, source, default_holder(), reason))
        self.scope = self.scope.bound_to(lock)

    # --- the flows ----------------------------------------------------------------------------------------------------
    def looking(self) -> Flow[dict[str, Mark]]:
        """Read the mark of every resource."""
        found: dict[str, Mark] = {}
        for resource in self.scope.resources:
            seen: Seen = yield Look(resource)
            found[resource] = seen.marks[0] if seen.marks else Mark(resource, self.scope.lock)
        return found

    def sealing(self, proof: Credential) -> Flow[Sealed]:
        """Seal every resource."""
        return guarding.seal(self.scope, proof.sequencer, proof.tenure)

    def opening(self, proof: Credential) -> Flow[Opened]:
        """Begin a guarded transaction."""
        return guarding.open_transaction(self.scope, proof.sequencer, proof.tenure, _left_ms(proof))

    def finishing(self, proof: Credential, presented: tuple[str, ...]) -> Flow[None]:
        """Commit a guarded transaction."""
        return commit.finish(self.scope, proof.sequencer, proof.tenure, presented)

    def checking(self, proof: Credential, *, may_raise: bool) -> Flow[Sealed]:
        """Check the marks inside the caller's transaction."""
        return guarding.check(self.scope, proof.sequencer, proof.tenure, _left_ms(proof), may_raise=may_raise)

    def presenting(self, proof: Credential) -> Flow[tuple[str, ...]]:
        """Have the caller's writes admitted; return the resources to which the lease was presented."""
        return guarding.present(self.scope, proof.sequencer, proof.tenure, _left_ms(proof))

    def presenting_first(self, proof: Credential) -> Flow[Opened]:
        """Have the caller's writes admitted from the beginning of their transaction on."""
        return guarding.present_first(self.scope, proof.sequencer, proof.tenure, _left_ms(proof))

    def closing(self, proof: Credential) -> Flow[None]:
        """Make the lease's own token stale."""
        return guarding.close(self.scope, proof.sequencer, proof.tenure)

    # --- the hooks ----------------------------------------------------------------------------------------------------
    @contextmanager
    def telling(self, proof: Credential) -> Iterator[None]:
        """Tell of a refusal that leaves the block."""
        try:
            yield
        except GuardError as error:
            self.tell_refused(proof, error)
            raise

    def tell_opened(self, proof: Credential, opened: Opened) -> None:
        """Tell what a guarded transaction has sealed, and which refusals were only observed."""
        if opened.sealed is not None:
            self.tell_sealed(proof, opened.sealed)
        elif opened.refused:
            self.tell_observed(proof, opened.refused)

    def tell_sealed(self, proof: Credential, sealed: Sealed) -> None:
        """Tell which marks were raised, and which refusals were only observed."""
        for resource in sealed.raised:
            tell(self.hooks, Event("sealed", self.scope.lock, proof.sequencer.token, resource))
        self.tell_observed(proof, sealed.refused)

    def tell_observed(self, proof: Credential, refused: Iterable[Refused]) -> None:
        """Tell which resources would have refused."""
        for resource, error in refused:
            self.tell_refused(proof, error, resource)

    def tell_refused(self, proof: Credential, error: GuardError, resource: str | None = None) -> None:
        """Tell that the token was turned away; a mistake in using the guard is no refusal."""
        if (reason := KINDS.get(type(error))) is not None:
            resource = resource or getattr(error, "resource", None) or self.scope.resources[0]
            tell(self.hooks, Event("refused", self.scope.lock, proof.sequencer.token, resource, reason=reason))


def _left_ms(proof: Credential) -> int | None:
    remaining = proof.remaining()
    return None if remaining is None else int(remaining * _MS_PER_S)
