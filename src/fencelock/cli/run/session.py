"""One `fencelock run`, from its first fork to its exit code.

    fork CMD behind its gate, fork the watchdog     nothing is held, no thread runs, no database is open
    acquire                                         a signal ends the wait, and the place in the queue
    tell the watchdog the deadline, open the gate
    supervise until CMD's whole group is over
    close the guards, release the lease

Promise: whatever happens, and wherever, neither CMD nor the watchdog is left running; the lease is released, or is
abandoned to the keeper, or, if this process is killed, is ended by its ttl.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

import fencelock
from fencelock.cli.errors import LEASE_LOST, SIGNALLED, UNAVAILABLE, complain
from fencelock.cli.run import events as happenings
from fencelock.cli.run.command import Command
from fencelock.cli.run.events import Events
from fencelock.cli.run.signals import Signals
from fencelock.cli.run.supervisor import Supervisor
from fencelock.cli.run.watchdog import Watchdog

if TYPE_CHECKING:
    from fencelock.cli.run.terms import RunOptions

_SOURCE_VARIABLE = "FENCELOCK_SOURCE"


def hold_and_run(terms: RunOptions) -> int:
    """Run CMD under the lock and return the exit code."""
    command = Command(terms.words)
    events = Events()
    watchdog = Watchdog(command.pid, events=events.writer, grace_ms=terms.grace_ms)
    signals = Signals(events)
    supervisor = Supervisor(command, watchdog, events=events, signals=signals, grace_ms=terms.grace_ms)
    try:
        return RunSession(terms, supervisor, watchdog, events, signals).run()
    except BaseException:
        # Whatever it has become on its way here, by a client's callback for example, the signal was the cause.
        if signals.interrupted_by is None:
            raise
        return SIGNALLED + signals.interrupted_by
    finally:
        command.signal(signal.SIGKILL)  # Not sent any more once CMD was reaped.


class RunSession:
    """The lease of one run: who holds it, who hears of it, and how it ends."""

    def __init__(
        self, terms: RunOptions, supervisor: Supervisor, watchdog: Watchdog, events: Events, signals: Signals
    ) -> None:
        self._terms = terms
        self._supervisor = supervisor
        self._watchdog = watchdog
        self._events = events
        self._signals = signals
        self._lease: fencelock.Lease | None = None
        self._loss = "it could not be renewed in time"

    def run(self) -> int:
        """Acquire, run CMD, release; return the exit code."""
        _show_warnings()
        _check_guards(self._terms.guards)
        with fencelock.connect(self._terms.source, hooks=fencelock.Hooks(on_renewed=self._on_renewed)) as source:
            self._tell_of_new_file(source.url)
            lease = self._lease = self._acquire(source)
            code = self._run_under(lease)
            is_lost = self._supervisor.is_lost or lease.lost.is_set()
            if is_lost:
                complain(f"lock {lease.lock!r}: the lease was lost ({self._loss}); CMD ended with {code}")
            is_closed = self._close_guards(lease)
            lease.release()
        return LEASE_LOST if is_lost else code or (0 if is_closed else UNAVAILABLE)

    def _acquire(self, source: fencelock.Source) -> fencelock.Lease:
        terms = self._terms
        lock = source.lock(terms.name, ttl=terms.ttl, timeout=terms.wait, on_lost=self._on_lost, holder=terms.holder)
        with self._signals.interrupting():
            lease = lock.acquire(blocking=terms.wait != 0)
        if lease is None:
            raise fencelock.AcquireTimeoutError(_who_has_it(source, terms))
        return lease

    def _run_under(self, lease: fencelock.Lease) -> int:
        """Run CMD until its whole group is over, and return how it ended."""
        self._watchdog.rely_until(lease.deadline_ms)
        lease.check_valid()
        self._signals.pass_to_command()
        return self._supervisor.run(
            {
                "FENCELOCK_LOCK": lease.lock,
                "FENCELOCK_TOKEN": str(lease.token),
                "FENCELOCK_SEQUENCER": str(lease.sequencer),
            }
        )

    def _close_guards(self, lease: fencelock.Lease) -> bool:
        """Make the lease's token stale at the guards (G10); return whether all of them could be told."""
        if not self._terms.guards:
            return True
        from fencelock._api.guard import guards_of
        from fencelock.stores.registry import guard_url

        is_closed = True
        for url in self._terms.guards:
            try:
                for guard in guards_of(url, lease.lock):
                    guard.close(lease.sequencer)
            except fencelock.FencelockError as error:
                where = guard_url(url)
                complain(f"the guard {where} was not closed, so whoever has CMD's token can still write there: {error}")
                is_closed = False
        return is_closed

    def _tell_of_new_file(self, url: str) -> None:
        """Name the default file when it is about to be made: another user has another one."""
        is_default = self._terms.source is None and not os.environ.get(_SOURCE_VARIABLE)
        path = url.removeprefix("sqlite:///")
        if is_default and not os.path.exists(path):
            complain(f"locks are kept in {path}, which is made now for this user; --source names another place")

    def _on_renewed(self, _event: fencelock.Event) -> None:
        """Tell the watchdog; called in a thread of the keeper's."""
        if self._lease is not None:
            self._watchdog.rely_until(self._lease.deadline_ms)

    def _on_lost(self, reason: str) -> None:
        """Tell the watchdog and the supervisor; called in a thread of the keeper's."""
        self._loss = reason
        self._watchdog.lease_is_lost()
        self._events.tell(happenings.LEASE_LOST)


def _check_guards(urls: tuple[str, ...]) -> None:
    """Raise ConfigError for a URL that can name no guard, before anything is held."""
    if urls:
        from fencelock.stores.registry import guard_store

        for url in urls:
            guard_store(url)


def _who_has_it(source: fencelock.Source, terms: RunOptions) -> str:
    from fencelock.cli.output import printable

    info = source.info(terms.name)
    waited = f" within {terms.wait:g} s" if terms.wait else ""
    if info.holder is None:
        return f"lock {terms.name!r} was not obtained{waited}; it is free or promised to a waiter now: try again"
    left = "it is not known for how long" if info.ttl is None else f"{info.remaining:.1f} s left of its lease"
    return (
        f"lock {terms.name!r} was not obtained{waited}: {printable(info.holder)} holds it with token {info.token}, "
        f"{left}; waiting: {len(info.waiters)}"
    )


def _show_warnings() -> None:
    """Show the library's warnings as lines of this command; its events are told at the end, and what a client says of
    its connections is said by the library too.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("fencelock: %(message)s"))
    handler.addFilter(lambda record: record.name == "fencelock" and not hasattr(record, "fencelock_event"))
    logging.getLogger("fencelock").addHandler(handler)
