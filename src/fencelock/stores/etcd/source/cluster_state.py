"""What one process has at one etcd cluster: the source's record as it knows it, its sessions, its claims, its watches.

Promise: every answer is held against what was known before it was asked for: a revision that went back, another cluster
and another history are noticed, and no lock is granted by them (T7). A session is made when it is first needed, its
lease is never left behind, and a keepalive costs a request no trip of its own. A claim that nobody asks for any more
ends by its ttl though its session lives on. A forked child has nothing of its parent's.
"""

import os
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from fencelock.clock import boottime_ms, boottime_us
from fencelock.errors import ConfigError, SchemaError, SourceError
from fencelock.stores.etcd.connection import messages as say
from fencelock.stores.etcd.connection import operations as op
from fencelock.stores.etcd.connection.client import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, TXN, EtcdClient, Method
from fencelock.stores.etcd.connection.errors import LeaseExistsError, LeaseGoneError
from fencelock.stores.etcd.connection.url import EtcdConnectionInfo
from fencelock.stores.etcd.source.layout import EtcdLayout, EtcdRecord, queue_entry_value, record_of
from fencelock.stores.etcd.source.pending_revocations import PendingRevocations, wait_for_all
from fencelock.stores.etcd.source.queue_entry import EtcdQueueEntry
from fencelock.stores.etcd.source.session import EtcdSession
from fencelock.stores.etcd.source.watcher import Watcher
from fencelock.stores.quorum.tombstones import EndedClaims
from fencelock.stores.source_clock import Seen, SourceIdentity

MS_PER_S = 1000
MAX_OPERATIONS = 100
"""Of one transaction; etcd takes 128 unless it was told otherwise."""
EXPIRED = "it expired at the source before it was renewed"


class Call(NamedTuple):
    """Say this, and be sent the answer."""

    method: Method
    request: Any


class Pair(NamedTuple):
    """Say both at once, and be sent both answers; None for the second if there is none."""

    main: Call
    beside: Call


Talk = Generator[Call | Pair, Any, Any]


class ClusterState:
    """One process at one cluster. Its talks say things to etcd, and are sent the answers."""

    def __init__(self, place: EtcdConnectionInfo) -> None:
        self.url = place.url
        self.layout = EtcdLayout(place.prefix)
        self.client = EtcdClient(place)
        self.identity = SourceIdentity(place.url)
        self._cluster_id: int | None = None
        self.highest = 0
        """The highest revision that was seen."""
        self._went_back = False
        """Whether a lower one was seen since: it would soon be past that one, and its tokens old all the same."""
        self._begin_anew()
        _PRESENCES.add(self)

    def _begin_anew(self) -> None:
        self._mutex = threading.Lock()
        self.record: EtcdRecord | None = None
        self.sessions: dict[int, EtcdSession] = {}
        self.standing: dict[str, EtcdQueueEntry] = {}
        self.ended = EndedClaims()
        self.watcher = Watcher(self.client)
        self.partings = PendingRevocations(self.client)

    def after_fork_in_child(self) -> None:
        """Forget what is the parent's."""
        _INHERITED.append((self.watcher, self.partings))
        self._begin_anew()

    # --- what is heard ------------------------------------------------------------------------------------------------
    def ask(self, txn: Any) -> Talk:
        """Run a transaction, and return its answer."""
        before = self.highest
        answer = yield Call(TXN, txn)
        self.note(answer.header, before)
        return answer

    def ask_and_keep(self, txn: Any, session: EtcdSession) -> Talk:
        """Run a transaction, with the session's keepalive beside it if that is due; return its answer."""
        if not session.is_due():
            return (yield from self.ask(txn))
        before, sent_ms = self.highest, boottime_ms()
        session.asked_ms = sent_ms
        answer, kept = yield Pair(Call(TXN, txn), _keepalive(session))
        self.note(answer.header, before)
        self.hear_keepalive(session, kept, sent_ms)
        yield from self.end_overdue()
        return answer

    def note_minted(self, header: Any, before: int) -> None:
        """The same for an answer whose revision is a token: it is above all that was known before it was asked for."""
        self.note(header, before + 1)

    def note(self, header: Any, before: int) -> None:
        """Refuse the answer of another cluster, or of one that went back behind what was known before it was asked."""
        if header.revision < before or self._cluster_id not in (None, header.cluster_id):
            self._went_back = True
        if self._went_back:
            self.record = None
            raise SourceError(
                f"{self.url} went back from revision {self.highest} of cluster {self._cluster_id or 0:x} to revision "
                f"{header.revision} of cluster {header.cluster_id:x}: an older state was restored, or the URL names"
                f" two clusters. No lock is granted: stop everything that uses it, then run `fencelock epoch --raise "
                f"--reason …`"
            )
        self._cluster_id = header.cluster_id
        self.highest = max(self.highest, header.revision)

    # --- the record ---------------------------------------------------------------------------------------------------
    def known_record(self) -> Talk:
        """Return the source's record, read now if it is not known."""
        return self.record or (yield from self.read_record())[0]

    def read_record(self, *, is_remedy: bool = False) -> Talk:
        """Read the record, and return it with the revision as of which it holds. `is_remedy`: also of a source that
        went back; nothing is known by that.
        """
        before, seen = self.highest, self.identity.seen
        answer = yield Call(TXN, op.txn([], [op.get(self.layout.record)]))
        kvs, revision = answer.responses[0].response_range.kvs, answer.header.revision
        if not kvs:
            raise SchemaError(f"{self.url} holds no source of tokens: run `fencelock install` on it")
        record = record_of(kvs[0].value, kvs[0].mod_revision, self.url)
        if is_remedy and (self._went_back or revision < before):
            return record, revision
        self._take(record, answer.header, before, seen)
        return record, revision

    def _take(self, record: EtcdRecord, header: Any, before: int, seen: Seen | None) -> None:
        """Know the record from now on, unless it is an older one than was known before it was asked for."""
        if seen is not None and record.source_id == seen.source_id and record.epoch > seen.epoch:
            # A new epoch is what makes an older state good again.
            self._cluster_id, self.highest, self._went_back = header.cluster_id, header.revision, False
        else:
            self.note(header, before)
        self.identity.check(Seen(record.source_id, record.epoch, record.history_id), seen)
        self.record = record

    # --- sessions -----------------------------------------------------------------------------------------------------
    def open_session(self, ttl_ms: int) -> Talk:
        """Return the session of this ttl, with a lease that etcd has granted."""
        with self._mutex:
            session = self.sessions.get(ttl_ms)
            if session is None or session.is_lost:
                session = self.sessions[ttl_ms] = EtcdSession(ttl_ms)
        if session.confirmed_ms is None:
            yield from self._grant(session)
        return session

    def _grant(self, session: EtcdSession) -> Talk:
        sent_ms, ttl_s = boottime_ms(), session.ttl_ms // MS_PER_S
        try:
            granted = yield Call(LEASE_GRANT, say.LeaseGrantRequest(id=session.lease, ttl=ttl_s))
        except LeaseExistsError:
            # Another thread was quicker, or the first grant's answer was lost.
            self.hear_keepalive(session, (yield _keepalive(session)), sent_ms)
            return
        if granted.ttl != ttl_s:
            yield Call(LEASE_REVOKE, say.LeaseRevokeRequest(id=session.lease))
            session.is_lost = True
            raise ConfigError(
                f"{self.url} grants a ttl of {granted.ttl} s where {ttl_s} s were asked for: ask for {granted.ttl} s, "
                f"or lower the cluster's --election-timeout, whose one and a half is its shortest ttl"
            )
        session.confirm(sent_ms)

    def keep(self, session: EtcdSession, txn: Any) -> Talk:
        """Say the session's keepalive, and a transaction beside it; return that one's answer."""
        before, sent_ms = self.highest, boottime_ms()
        session.asked_ms = sent_ms
        kept, answer = yield Pair(_keepalive(session), Call(TXN, txn))
        self.hear_keepalive(session, kept, sent_ms)
        if answer is not None:
            self.note(answer.header, before)
        return answer

    def hear_keepalive(self, session: EtcdSession, answer: Any, sent_ms: int) -> None:
        """Know of a session what etcd says of it: a lease without time left is gone, and so is one whose answer came
        too late.
        """
        if answer is None:
            return
        if answer.ttl <= 0 or session.is_overdue():
            self.lose(session)
        else:
            session.confirm(sent_ms)

    def lose(self, session: EtcdSession) -> None:
        """Use a session no more, and have it end with every place that hangs on it.

        Also one that etcd said to be gone: a member may say so before it has heard of the session.
        """
        if not session.is_lost:
            session.is_lost = True
            if session.confirmed_ms is not None:
                self.partings.part(session.lease)

    # --- claims -------------------------------------------------------------------------------------------------------
    def settle(self, standing: EtcdQueueEntry, session: EtcdSession, holder: str) -> None:
        """Give a claim the key and the value of a place of this session."""
        if standing.session is session:
            return
        with self._mutex:
            number = session.take(standing.lock)
        standing.session, standing.number = session, number
        standing.key = self.layout.place(standing.lock, session.lease, number)
        standing.value = queue_entry_value(standing.claim, holder)

    def forget(self, standing: EtcdQueueEntry) -> None:
        """Know no more of a claim that has no place; its number is free."""
        if self.standing.pop(standing.claim, None) is not None and standing.session is not None:
            with self._mutex:
                standing.session.give_back(standing.lock, standing.number)

    def end(self, standing: EtcdQueueEntry, reason: str) -> None:
        """Take note that a claim is over."""
        self.watcher.forget(standing.watch_id)
        self.forget(standing)
        self.ended.remember(standing.claim, boottime_us(), reason)

    def watch(
        self, standing: EtcdQueueEntry, key: bytes, revision: int, tell: Callable[[], None], *, is_urgent: bool = False
    ) -> None:
        """Have a claim told when a key is gone, instead of what it watched before."""
        self.watcher.forget(standing.watch_id)
        standing.watch_id = self.watcher.watch(key, revision, tell, is_urgent=is_urgent)

    def clear(self, standings: list[EtcdQueueEntry]) -> Talk:
        """Take the places of claims away, as far as their sessions have not done so."""
        for one in standings:
            # First, so that a request to place it that is sent from now on sees this, and one that was is in doubt.
            one.is_over = True
        placed = [one for one in standings if one.session is not None and not one.session.is_lost]
        for batch in batches(placed):
            try:
                yield from self.ask(op.txn([], [op.within(self.farewell(one)) for one in batch]))
            except LeaseGoneError:
                for one in batch:
                    yield from self._clear_alone(one)

    def _clear_alone(self, standing: EtcdQueueEntry) -> Talk:
        assert standing.session is not None
        try:
            yield from self.ask(self.farewell(standing))
        except LeaseGoneError:
            standing.session.is_lost = True

    def farewell(self, standing: EtcdQueueEntry, *more: Any) -> Any:
        """Take a claim's place away, and do what else is to be done if it was there.

        The place is known by its value: its key may be another claim's by the time a slow request arrives. A request
        under way that would bring it back is refused (H4).
        """
        assert standing.session is not None
        refusal = []
        if standing.is_in_doubt:
            refusal.append(op.put(self.layout.refused(standing.claim), b"", standing.session.lease))
        is_there = op.has_value(standing.key, standing.value)
        return op.txn([is_there], [op.delete(standing.key), *more, *refusal], refusal)

    def end_overdue(self) -> Talk:
        """End the claims that nobody has asked for during a whole ttl: their threads are gone."""
        self.partings.part_again()
        now_ms = boottime_ms()
        overdue = [one for one in list(self.standing.values()) if one.session and one.deadline_ms < now_ms]
        yield from self.clear(overdue)
        for standing in overdue:
            self.end(standing, EXPIRED)

    # --- the end ------------------------------------------------------------------------------------------------------
    def retire(self) -> None:
        """End the sessions on which no claim hangs, without waiting for etcd."""
        used = {standing.session for standing in list(self.standing.values())}
        for ttl_ms, session in list(self.sessions.items()):
            if session not in used:
                self.sessions.pop(ttl_ms, None)
                self.lose(session)
        self.watcher.close()

    def leave(self) -> None:
        """End all sessions, without waiting for etcd."""
        for session in list(self.sessions.values()):
            self.lose(session)


def batches(standings: list[EtcdQueueEntry]) -> list[list[EtcdQueueEntry]]:
    """Return the claims in batches, each for one transaction."""
    return [standings[begin : begin + MAX_OPERATIONS] for begin in range(0, len(standings), MAX_OPERATIONS)]


def _keepalive(session: EtcdSession) -> Call:
    return Call(LEASE_KEEP_ALIVE, say.LeaseKeepAliveRequest(id=session.lease))


def _after_fork_in_child() -> None:
    for presence in list(_PRESENCES):
        presence.after_fork_in_child()


def leave_all() -> None:
    """End the sessions of this process at the interpreter's end, with all that hangs on them."""
    for presence in list(_PRESENCES):
        presence.leave()
    wait_for_all()


_INHERITED: list[Any] = []
"""What a forked child has of its parent's: to let go of it would be to use it."""
_PRESENCES: "weakref.WeakSet[ClusterState]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork_in_child)
