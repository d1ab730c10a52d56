"""The state of one process at one etcd cluster: the source's record, its sessions, its queue entries, its watches.

Promise: every answer is compared with what was known before its request was sent. A revision that went back, another
cluster or another history is noticed, and no lock is granted because of it (T7). A session is made when it is first
needed, its lease is never left behind, and a keepalive needs no round trip of its own. A claim that nobody asks for any
more ends by its ttl though its session lives on. A forked child has nothing of its parent's.
"""

import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from fencelock._platform import at_fork
from fencelock.clock import boottime_ms, boottime_us
from fencelock.errors import ConfigError, SourceError
from fencelock.stores.ended_claims import EndedClaims
from fencelock.stores.errors import SOURCE_PART, not_installed
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.channels import Method
from fencelock.stores.etcd.connection.client import LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, TXN, EtcdClient
from fencelock.stores.etcd.connection.errors import LeaseExistsError, LeaseGoneError, was_answered
from fencelock.stores.etcd.connection.url import EtcdConnectionInfo
from fencelock.stores.etcd.source.layout import EtcdLayout, EtcdRecord, decode_record, encode_queue_entry
from fencelock.stores.etcd.source.session import EXPIRED, EtcdQueueEntry, EtcdSession, PendingRevocations, wait_for_all
from fencelock.stores.etcd.source.watcher import Watcher
from fencelock.stores.source_clock import SourceIdentity, SourceState

MS_PER_S = 1000
MAX_OPERATIONS = 100
"""In one transaction; etcd takes 128 unless it is configured otherwise."""


class EtcdCall(NamedTuple):
    """Send this request, and return the answer."""

    method: Method
    request: Any


class CallPair(NamedTuple):
    """Send both requests at once, and return both answers; None for the second if it failed."""

    main: EtcdCall
    concurrent: EtcdCall


Operations = Generator[EtcdCall | CallPair, Any, Any]
"""Yields requests to etcd, is sent their answers, and returns the result."""


class ClusterState:
    """One process at one cluster. Any thread may use it.

    Threads share it without one great lock, because a lock would be held across round trips. Each field is changed by a
    single assignment or dictionary operation, which the interpreter makes atomic, and the code compares what it reads
    with what it remembered before its request. The mutex guards only what takes several steps: the creation of a
    session, and the numbers of queue entries.
    """

    def __init__(self, info: EtcdConnectionInfo) -> None:
        self.url = info.url
        self.layout = EtcdLayout(info.prefix)
        self.client = EtcdClient(info)
        self.identity = SourceIdentity(info.url)
        self._cluster_id: int | None = None
        self.highest = 0
        """The highest revision that this process has seen."""
        self._has_regressed = False
        """Whether a lower revision was seen since.

        The cluster would soon be past `highest` again, and its tokens would still have been issued before: so this
        stays until the epoch is raised.
        """
        self._reset()
        _STATES.add(self)

    def _reset(self) -> None:
        # What a forked child must not share with its parent: a lock that another thread may hold, the leases and queue
        # entries, which stay the parent's, the watcher's thread, which the child does not have.
        self._mutex = threading.Lock()
        self.record: EtcdRecord | None = None
        self.sessions: dict[int, EtcdSession] = {}
        self.entries: dict[str, EtcdQueueEntry] = {}
        self.ended = EndedClaims()
        self.watcher = Watcher(self.client)
        self.pending_revocations = PendingRevocations(self.client)

    def after_fork_in_child(self) -> None:
        """Forget the parent's sessions and claims."""
        # Kept, because destroying them would use the parent's channels.
        _INHERITED.append((self.watcher, self.pending_revocations))
        self._reset()

    # --- answers ------------------------------------------------------------------------------------------------------
    def execute(self, txn: Any) -> Operations:
        """Run a transaction, and return its answer."""
        # Before the request: other threads may see later revisions while this answer is on its way.
        before = self.highest
        answer = yield EtcdCall(TXN, txn)
        self.check_header(answer.header, before)
        return answer

    def execute_with_keepalive(self, txn: Any, session: EtcdSession) -> Operations:
        """Run a transaction, together with the session's keepalive if that is due; return the transaction's answer."""
        if not session.is_due():
            return (yield from self.execute(txn))
        before, sent_ms = self.highest, boottime_ms()
        # Set before the request is sent, so that no other thread sends a keepalive as well.
        session.keepalive_sent_ms = sent_ms
        answer, kept = yield CallPair(EtcdCall(TXN, txn), _keepalive(session))
        self.check_header(answer.header, before)
        self.apply_keepalive(session, kept, sent_ms)
        yield from self.end_overdue()
        return answer

    def check_minted(self, header: Any, before: int) -> None:
        """Check an answer whose revision is a token: it must be above everything known before the request."""
        self.check_header(header, before + 1)

    def check_header(self, header: Any, before: int) -> None:
        """Raise SourceError if an answer is another cluster's, or older than what was known before the request."""
        if header.revision < before or self._cluster_id not in (None, header.cluster_id):
            self._has_regressed = True
        if self._has_regressed:
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
    def known_record(self) -> Operations:
        """Return the source's record; read it if it is not known."""
        return self.record or (yield from self.read_record())[0]

    def read_record(self, *, allow_regressed: bool = False) -> Operations:
        """Read the record, and return it with the revision at which it was read.

        `allow_regressed` also accepts a source that went back, without remembering anything of it.
        """
        before, seen = self.highest, self.identity.seen
        answer = yield EtcdCall(TXN, wire.txn([], [wire.get(self.layout.record)]))
        kvs, revision = answer.responses[0].response_range.kvs, answer.header.revision
        if not kvs:
            raise not_installed(self.url, SOURCE_PART)
        record = decode_record(kvs[0].value, kvs[0].mod_revision, self.url)
        if allow_regressed and (self._has_regressed or revision < before):
            return record, revision
        self._accept_record(record, answer.header, before, seen)
        return record, revision

    def _accept_record(self, record: EtcdRecord, header: Any, before: int, seen: SourceState | None) -> None:
        """Remember the record, unless it is older than the one known before the request."""
        if seen is not None and record.source_id == seen.source_id and record.epoch > seen.epoch:
            # A new epoch makes an older state valid again: its tokens begin above every token ever issued.
            self._cluster_id, self.highest, self._has_regressed = header.cluster_id, header.revision, False
        else:
            self.check_header(header, before)
        self.identity.check(SourceState(record.source_id, record.epoch, record.history_id), seen)
        self.record = record

    # --- sessions -----------------------------------------------------------------------------------------------------
    def open_session(self, ttl_ms: int) -> Operations:
        """Return the session of this ttl, with a lease that etcd has granted."""
        # Under the mutex only the object is made, which draws the lease's id. The grant is a round trip and needs no
        # lock: if two threads send it, etcd refuses the second grant of the same id.
        with self._mutex:
            session = self.sessions.get(ttl_ms)
            if session is None or session.is_lost:
                session = self.sessions[ttl_ms] = EtcdSession(ttl_ms)
        if session.confirmed_ms is None:
            yield from self._grant(session)
        return session

    def _grant(self, session: EtcdSession) -> Operations:
        sent_ms, ttl_s = boottime_ms(), session.ttl_ms // MS_PER_S
        try:
            granted = yield EtcdCall(LEASE_GRANT, wire.LeaseGrantRequest(id=session.lease, ttl=ttl_s))
        except LeaseExistsError:
            # Another thread was faster, or the first grant's answer was lost. A keepalive tells how long it lives.
            self.apply_keepalive(session, (yield _keepalive(session)), sent_ms)
            return
        if granted.ttl != ttl_s:
            yield EtcdCall(LEASE_REVOKE, wire.LeaseRevokeRequest(id=session.lease))
            session.is_lost = True
            raise ConfigError(
                f"{self.url} grants a ttl of {granted.ttl} s where {ttl_s} s were asked for: ask for {granted.ttl} s, "
                f"or lower the cluster's --election-timeout, whose one and a half is its shortest ttl"
            )
        session.confirm(sent_ms)

    def keepalive_with(self, session: EtcdSession, txn: Any) -> Operations:
        """Send the session's keepalive together with a transaction; return the transaction's answer, None if lost."""
        before, sent_ms = self.highest, boottime_ms()
        session.keepalive_sent_ms = sent_ms
        kept, answer = yield CallPair(_keepalive(session), EtcdCall(TXN, txn))
        self.apply_keepalive(session, kept, sent_ms)
        if answer is not None:
            self.check_header(answer.header, before)
        return answer

    def apply_keepalive(self, session: EtcdSession, answer: Any, sent_ms: int) -> None:
        """Confirm the session, or lose it: etcd granted no time, or the answer came too late."""
        if answer is None:
            return
        # Checked when the answer arrives: etcd may have begun to end a lease whose time is over, and still confirm it.
        if answer.ttl <= 0 or session.is_overdue():
            self.lose_session(session)
        else:
            session.confirm(sent_ms)

    def lose_session(self, session: EtcdSession) -> None:
        """Stop using a session, and revoke its lease with every queue entry that is attached to it.

        This includes a lease that etcd reported as gone: a member may report that before it has heard of the lease.
        """
        if not session.is_lost:
            session.is_lost = True
            if session.confirmed_ms is not None:
                self.pending_revocations.revoke(session.lease)

    # --- claims -------------------------------------------------------------------------------------------------------
    def assign_key(self, entry: EtcdQueueEntry, session: EtcdSession, holder: str) -> None:
        """Give a claim the key and the value of a queue entry of this session."""
        if entry.session is session:
            return
        # Two threads that enqueue at one lock must not take the same number: they would be one queue entry (H9).
        with self._mutex:
            number = session.take_number(entry.lock)
        entry.number = number
        entry.key = self.layout.queue_entry(entry.lock, session.lease, number)
        entry.value = encode_queue_entry(entry.digest, holder)
        # Last: a claim that has a session is ended by deleting its key. A signal handler may raise before this line.
        entry.session = session

    def discard(self, entry: EtcdQueueEntry) -> None:
        """Forget a claim that has no queue entry in etcd; its number is free again."""
        # `pop` decides which of two threads gives the number back.
        if self.entries.pop(entry.digest, None) is not None and entry.session is not None:
            with self._mutex:
                entry.session.release_number(entry.lock, entry.number)

    def end(self, entry: EtcdQueueEntry, reason: str) -> None:
        """Note that a claim is over."""
        self.watcher.forget(entry.watch_id)
        self.discard(entry)
        self.ended.remember(entry.digest, boottime_us(), reason)

    def end_soon(self, entry: EtcdQueueEntry, reason: str) -> None:
        """Note that a lease is lost; `end_overdue` deletes its key, or tries that again."""
        entry.is_over, entry.deadline_ms = True, 0
        self.ended.remember(entry.digest, boottime_us(), reason)

    def watch(
        self, entry: EtcdQueueEntry, key: bytes, revision: int, notify: Callable[[], None], *, is_urgent: bool = False
    ) -> None:
        """Notify a claim when a key is deleted, instead of what it watched before."""
        self.watcher.forget(entry.watch_id)
        entry.watch_id = self.watcher.watch(key, revision, notify, is_urgent=is_urgent)

    def delete_entries(self, entries: list[EtcdQueueEntry]) -> Operations:
        """Delete the queue entries of claims, unless the end of their sessions has done so."""
        for one in entries:
            # First: a request to enqueue that starts after this sees it, and one that was sent before is in doubt.
            one.is_over = True
        enqueued = [one for one in entries if one.session is not None and not one.session.is_lost]
        for batch in batches(enqueued):
            try:
                yield from self.execute(wire.txn([], [wire.nested(self.delete_entry(one)) for one in batch]))
            except LeaseGoneError:
                # One of the leases is gone, and the transaction did nothing: find out which one.
                for one in batch:
                    yield from self._delete_alone(one)

    def _delete_alone(self, entry: EtcdQueueEntry) -> Operations:
        assert entry.session is not None
        try:
            yield from self.execute(self.delete_entry(entry))
        except LeaseGoneError:
            entry.session.is_lost = True

    def delete_entry(self, entry: EtcdQueueEntry, *more: Any) -> Any:
        """Return the transaction that deletes a claim's queue entry, and does `more` if the entry existed.

        It compares the value: by the time that a slow request arrives, the key may be another claim's. It also refuses
        the claim by name if a request under way could bring the entry back (H4).
        """
        assert entry.session is not None
        refusal = []
        if entry.is_in_doubt:
            refusal.append(wire.put(self.layout.refusal(entry.digest), b"", entry.session.lease))
        exists = wire.has_value(entry.key, entry.value)
        return wire.txn([exists], [wire.delete(entry.key), *more, *refusal], refusal)

    def end_overdue(self) -> Operations:
        """End the claims that nobody has asked for during a whole ttl: their threads are gone."""
        self.pending_revocations.retry_failed()
        now_ms = boottime_ms()
        # A copy: other threads add and remove entries meanwhile. An entry without a session has just been made.
        overdue = [one for one in list(self.entries.values()) if one.session and one.deadline_ms < now_ms]
        for batch in batches(overdue):
            if not (yield from self._try_to_end(batch)):
                for one in batch:
                    yield from self._try_to_end([one])

    def _try_to_end(self, overdue: list[EtcdQueueEntry]) -> Operations:
        """End claims, and return False if etcd has refused that because of one of them.

        An error is not the caller's: its own request is done, and the next one tries again.
        """
        try:
            yield from self.delete_entries(overdue)
        except SourceError as error:
            return not was_answered(error)
        for entry in overdue:
            self.end(entry, EXPIRED)
        return True

    # --- the end ------------------------------------------------------------------------------------------------------
    def revoke_unused_sessions(self) -> None:
        """Revoke the sessions without claims, without waiting for etcd."""
        used = {entry.session for entry in list(self.entries.values())}
        for ttl_ms, session in list(self.sessions.items()):
            if session not in used:
                self.sessions.pop(ttl_ms, None)
                self.lose_session(session)
        self.watcher.close()

    def revoke_all_sessions(self) -> None:
        """Revoke all sessions, without waiting for etcd."""
        for session in list(self.sessions.values()):
            self.lose_session(session)


def batches(entries: list[EtcdQueueEntry]) -> list[list[EtcdQueueEntry]]:
    """Return the entries in batches, each for one transaction."""
    return [entries[begin : begin + MAX_OPERATIONS] for begin in range(0, len(entries), MAX_OPERATIONS)]


def _keepalive(session: EtcdSession) -> EtcdCall:
    return EtcdCall(LEASE_KEEP_ALIVE, wire.LeaseKeepAliveRequest(id=session.lease))


def _after_fork_in_child() -> None:
    for state in list(_STATES):
        state.after_fork_in_child()


def revoke_all_at_exit() -> None:
    """Revoke the sessions of this process at the interpreter's end, with all queue entries attached to them."""
    for state in list(_STATES):
        state.revoke_all_sessions()
    wait_for_all()


_INHERITED: list[Any] = []
"""The parent's objects in a forked child, kept because destroying them would use them."""
_STATES: "weakref.WeakSet[ClusterState]" = weakref.WeakSet()
at_fork(after_in_child=_after_fork_in_child)
