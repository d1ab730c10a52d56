"""The sync guard, which refuses stale writers at a resource.

Promise: a write inside `with guard.transaction(lease)` is committed only if no newer holder has sealed the resource;
the same transaction checks that. The first use of a tenure seals the resource before anything is read from it. Any
thread may call any method.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from fencelock._api.advice import GUARD_WORDS, advised
from fencelock._api.base_guard import BaseGuard
from fencelock._api.credentials import LeaseLike, credential_of
from fencelock._api.durations import Duration
from fencelock._api.guard_blocks import Admission, GuardedTransaction
from fencelock._api.guard_core import check_free
from fencelock._api.idle_limit import IdleLimit
from fencelock._api.once import Once, once_of
from fencelock._api.preparing import check_transactional_ddl, prepare, repair
from fencelock._api.proving import prove
from fencelock._api.validation import (
    check_closable,
    check_info,
    check_keys,
    check_protect,
    check_rebuilt,
    check_roles,
    check_tables,
    scope_at,
)
from fencelock._drivers.guard import run
from fencelock._flows import admin, rights
from fencelock._flows.rights import Cured
from fencelock.hooks import NO_HOOKS, Hooks
from fencelock.model import (
    Mark,
    SourceInfo,
    check_lock_name,
    check_reason,
    check_resource_name,
    check_token,
    default_holder,
)
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import ENFORCE, GuardFlow, InspectResources, ResourceReport, Right
from fencelock.protocol.stores import GuardConnection, GuardStore
from fencelock.stores.registry import Location, guard_store

if TYPE_CHECKING:
    from fencelock._api.source import Source
    from fencelock.protocol.source_requests import Keys

Result = TypeVar("Result")


@advised(GUARD_WORDS)
def guard(
    url: Location,
    *,
    resource: str | None = None,
    resources: Iterable[str] | None = None,
    lock: str,
    independent: bool = False,
    hooks: Hooks = NO_HOOKS,
) -> "Guard":
    """Return a guard of one resource, or of several that are sealed together, at `url`. Opens nothing yet.

    A resource is what one mark protects: the tables that belong together. `lock` is the lock whose holder may write
    to it. `independent=True` allows this guard to be opened after the same tenure has read from another one: say so
    only if nothing written here depends on what was read there. ConfigError if an argument is outside its contract.
    """
    store = guard_store(url)
    return Guard(store, scope_at(store, resource, resources, lock, independent=independent), hooks)


class Guard(BaseGuard):
    """Enforces tokens at one or several resources of one store. `fencelock.guard(…)` makes one."""

    def seal(self, lease: LeaseLike, *, connection: Any = None) -> None:
        """Raise the mark of every resource to the lease's token, on the disk, before anything is read from them.

        `transaction` does this by itself; with several guards, seal each before the first read. `lease` is a lease or
        a Sequencer. With `connection`, a client's connection inside your own transaction, the marks are raised in that
        one, or only checked where raising is not safe (SQLite, MySQL; PostgreSQL but for READ COMMITTED).
        StaleTokenError if a newer holder has sealed a resource, WrongLockError, TokenCollisionError, SealLostError,
        GuardError if it comes too late in the tenure.
        """
        if connection is not None:
            Admission(self._core, credential_of(lease), connection, may_raise=True)
            return
        credential = credential_of(lease)
        block = object()
        try:
            credential.enter_guarded(block)
            check_free(self.url)
            self._core.seal(credential)
            credential.leave_guarded(block)
        except BaseException:
            credential.leave_guarded(block)
            raise

    def transaction(
        self, lease: LeaseLike, *, once: str | Once | None = None, idle: Duration | None = None
    ) -> "GuardedTransaction":
        """Return a block whose writes are committed at its end, if no newer holder has sealed a resource.

        `with guard.transaction(lease) as connection:` yields the client's own connection. The block must not end the
        transaction itself. Entering raises what `seal` raises, the lease's own error if it is over, and
        SourceUnavailableError if the write lock is not to be had; leaving raises GuardError if the block tried to end
        the transaction, UnfencedWriteError if it wrote to another resource's table, OutcomeUnknownError if the commit
        was not confirmed. Whatever leaves the block as an exception undoes it. SQLite: foreign keys are enforced in
        the block, and nobody else can write to the file while it is open. Stores that are no SQL database: the block
        gets what reads at once and keeps its writes until the end, where StaleTokenError may be raised too.

        `once` is a key, or a Once with a result: the block is committed once for this key of the guard's one resource.
        Entering raises AlreadyDoneError if it was done, by any lease, and also if this one is stale by now; another
        request under the key is KeyReusedError. EffectInDoubtError if a block that committed a part of its work by
        itself, or a `dispatch`, has recorded no result.

        PostgreSQL and MySQL end a block that sends nothing for as long as the lease had left when it began, also if the
        lease was renewed since: BlockLostError. `idle` is another limit in seconds, 600 at most. What it costs: if this
        process freezes inside the block, a successor waits that long, instead of the lease's time left, before it can
        seal. Other stores have no such limit, and ignore it.
        """
        credential = credential_of(lease)
        once_only = once_of(once, self._core.scope)
        return GuardedTransaction(self._core, credential, IdleLimit(credential, idle), once_only)

    def check(self, lease: LeaseLike, *, connection: Any, once: str | Once | None = None) -> "Admission":
        """Check inside your own open transaction that the lease is the newest holder, and hold the marks there.

        Call `seal(lease)` before you begin that transaction. Where the store enforces the resource, write inside
        `with guard.check(lease, connection=…):`, and commit after that block. GuardError if the connection is in no
        transaction, or in one that looks at an older state of the resource; otherwise it raises what `seal` raises.
        `once` is as for `transaction`, and needs the block: after AlreadyDoneError roll your transaction back.
        """
        once_only = once_of(once, self._core.scope)
        return Admission(self._core, credential_of(lease), connection, once_only, may_raise=False)

    def close(self, lease: LeaseLike) -> None:
        """Make the lease's own token stale at every resource: its late threads and children can no longer write.

        Idempotent. The lease may be over already; a newer holder is not disturbed.
        """
        credential = credential_of(lease)
        check_closable(credential)
        check_free(self.url)
        self._core.close(credential)

    def mark(self) -> Mark:
        """Return the mark of the guard's one resource; token 0 if it was never sealed."""
        return self._core.marks()[self._only_resource("mark")]

    def marks(self) -> dict[str, Mark]:
        """Return the mark of every resource of the guard, by its name."""
        return self._core.marks()

    def install(self) -> None:
        """Make the guard's half of fencelock's schema if the store has none; safe when run concurrently.

        `protect` does it too where it protects tables, and SQLite makes its own with the first mark.
        """
        self._core.store.install()

    def protect(
        self,
        *tables: str,
        mode: str = ENFORCE,
        source: "Source | SourceInfo | None" = None,
        connection: Any = None,
    ) -> None:
        """Have the store itself refuse (`enforce`) or count (`observe`) writes to the tables that present no token.

        Binds the resource to the guard's lock. Safe to repeat. Going from observe to enforce needs `source`, the
        lock's source: the mark is raised to its last token, so that current holders must acquire the lock again. With
        `connection`, a client's connection inside your own transaction, all of it happens in that one, and ends with
        it; before DDL on a protected table, enter `rebuilding`. GuardError if a table cannot be protected or belongs
        to another resource; UnsupportedError with `connection` from a store whose DDL commits (MySQL).

        UnsupportedError from a store without triggers: at etcd and ZooKeeper the first seal binds the resource. Where
        no seal creates a mark, call it without tables: it creates the mark, and leaves one that exists. GuardError if
        the mark is known to be lost: then, and whenever you cannot tell, name the `source`, whose last token the new
        mark becomes.
        """
        self._only_resource("protect")
        check_protect(self._core.store, self._core.scope, tables, mode)
        info = None if source is None else _source_info(source)
        who = default_holder()
        asked = (self._core.scope, tables, mode, info, who)
        if connection is None:
            check_free(self.url)
            prepare(self._core.store, tables)
            self._operate(admin.protect(*asked) if tables else admin.create_mark(self._core.scope, info, who))
        else:
            inside = self._inside(connection)
            self._core.store.install()
            run(admin.protect_inside(*asked), inside)

    def unprotect(self, *tables: str, reason: str, connection: Any = None) -> None:
        """Stop protecting these tables, or all of the resource. The mark stays. `connection`: as for `protect`."""
        self._only_resource("unprotect")
        check_tables(tables)
        asked = (self._core.scope, tables, default_holder(), check_reason(reason))
        if connection is None:
            check_free(self.url)
            repair(self._core.store)
            self._operate(admin.unprotect(*asked))
        else:
            run(admin.unprotect_inside(*asked), self._inside(connection))

    @contextmanager
    def rebuilding(self, *tables: str, connection: Any) -> Iterator[None]:
        """A block inside your own transaction for DDL on protected tables, which may drop them and create them again.

        Entering locks the mark before any table, as guarded blocks do, so that the two never wait for each other.
        Leaving without an exception protects the tables again, in the mode that they had. Commit afterwards. GuardError
        if the resource does not protect a table, or it is gone at the end. UnsupportedError as for `protect`.
        """
        self._only_resource("rebuilding")
        check_rebuilt(tables)
        inside = self._inside(connection)
        run(admin.hold(self._core.scope), inside)
        yield
        run(admin.restore(self._core.scope, tables), inside)

    def _inside(self, native: Any) -> GuardConnection:
        check_free(self.url)
        connection = self._core.caller_connection(native)
        check_transactional_ddl(self._core.store)
        return connection

    def lower(self, token: int, *, reason: str) -> None:
        """Set the mark of the guard's one resource to a lower token: the remedy for a poisoned mark."""
        self._only_resource("lower")
        self._operate(admin.lower(self._core.scope, check_token(token), default_holder(), check_reason(reason)))

    def raise_to(self, source: "Source | SourceInfo | int", *, reason: str, implausible: bool = False) -> None:
        """Raise every mark to the source's last token, or to a token: the step after the resource was restored.

        Leases that were granted until then are refused, since they may have read what the restore undid. `implausible`:
        you vouch for a token that no source can have issued by now; the source was restored under a wrong clock.
        ImplausibleTokenError without it.
        """
        to = check_token(source) if isinstance(source, int) else _source_info(source)
        who, why = default_holder(), check_reason(reason)
        self._operate(admin.raise_to(self._core.scope, to, who, why, is_implausible=implausible))

    def rebind(self, lock: str, *, source: "Source | SourceInfo", reason: str) -> None:
        """Bind the resources, and this guard, to another lock or source, whose tokens are above every mark.

        GuardError if the source's counter is below a mark: raise its epoch first.
        """
        check_free(self.url)
        self._core.rebind(check_lock_name(lock), _source_info(source), check_reason(reason))

    def outrank(self, lease: LeaseLike, *, reason: str) -> None:
        """Raise every mark to the token minted by breaking the lock, so that the broken lease can write no more."""
        sequencer = credential_of(lease).sequencer
        self._operate(admin.outrank(self._core.scope, sequencer, default_holder(), check_reason(reason)))

    # --- who may write ------------------------------------------------------------------------------------------------
    def grant(self, *roles: str, resource: str | None = None) -> None:
        """Let these roles of the database seal, present and close the guard's resources, which only its owner may so
        far.

        `resource` names another one, or a prefix that ends in `*`: a guard's own resource of such a name is a
        ConfigError without it. UnsupportedError from a store that has no functions
        of its own: its roles and access lists are yours (`fencelock protect --print-policy`).
        """
        self._operate(rights.grant(self._own_patterns(resource), check_roles(roles), default_holder()))

    def revoke(self, role: str, *, resource: str | None = None, reason: str) -> tuple[Right, ...]:
        """Take every right of the role that covers the guard's resources, or `resource`; return what it had.

        A transaction of the role that is open goes on, and is refused at its next seal or block.
        """
        patterns, (role,) = self._patterns(resource), check_roles((role,))
        return self._operate(rights.revoke(patterns, role, default_holder(), check_reason(reason)))

    def require_signatures(self, is_required: bool = True, *, reason: str) -> None:
        """Accept at a seal only sequencers that one of the installed keys has signed, or any again.

        GuardError while no key is installed, since no holder could seal then: `install_keys` first.
        """
        self._operate(rights.require_signatures(self.resources, is_required, default_holder(), check_reason(reason)))

    def install_keys(self, source: "Source | Keys") -> None:
        """Bring the source's keys to this store, for all its resources; they replace the ones that it had."""
        found: Any = source
        if callable(getattr(found, "keys", None)):
            found = found.keys()
        self._operate(rights.install_keys(check_keys(found).keys, default_holder()))

    def unpoison(self, *roles: str, source: "Source | SourceInfo", reason: str) -> Cured:
        """Undo what a forger did to the marks, and keep it from doing it again.

        Takes the rights of these roles, ends their sessions, sets each mark to the source's last token at most, and
        binds it again to the guard's lock and the source. The lock's holder has to acquire it again.
        """
        info = _source_info(source)
        names, why = check_roles(roles, at_least=0), check_reason(reason)
        flow = rights.unpoison(self._core.scope, names, info, default_holder(), why)
        return self._operate(flow)

    def _operate(self, flow: GuardFlow[Result]) -> Result:
        check_free(self.url)
        return self._core.run(flow)


def _source_info(source: "Source | SourceInfo") -> SourceInfo:
    return check_info(source.describe() if hasattr(source, "describe") else source)


def inspect_resources(url: str, resource: str | None = None) -> ResourceReport:
    """Return what the guards at `url` keep, of all resources or of one: marks, protections, observations.

    For operators and tests; it changes nothing, and needs no lease. SchemaError if a database of PostgreSQL or MySQL
    has no guard's half; elsewhere the report is empty then.
    """
    if resource is not None:
        check_resource_name(resource)
    return _run_at(guard_store(url), ask(InspectResources(resource)))


def operate_on(url: str, flow: GuardFlow[Result]) -> Result:
    """Run an operator's flow that changes the store at `url`, and concerns no lock."""
    store = guard_store(url)
    prove(store)
    return _run_at(store, flow)


def _run_at(store: GuardStore, flow: GuardFlow[Result]) -> Result:
    connection = store.connect()
    try:
        return run(flow, connection)
    finally:
        connection.close()


def guards_of(url: str, lock: str) -> list[Guard]:
    """Return a guard for each resource at `url` that is bound to the lock."""
    return [guard(url, resource=mark.resource, lock=lock) for mark in inspect_resources(url).marks if mark.lock == lock]
