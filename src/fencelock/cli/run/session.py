"""One `fencelock run`, from its first fork to its exit code.

    fork CMD behind its gate, fork the watchdog     nothing is held, no thread runs, no database is open
    acquire                                         a signal ends the wait and removes the queue entry
    tell the watchdog the deadline, open the gate
    supervise until CMD's whole group is over
    record the key of --once, close the guards, release the lease

Promise: whatever happens, neither CMD nor the watchdog keeps running. The lease is released, or abandoned to the
keeper, or, if this process is killed, ended by its ttl.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

import fencelock
from fencelock._api.lock_options import is_named
from fencelock._api.repeatable import may_campaign_again
from fencelock.cli import AGAIN
from fencelock.cli.errors import LEASE_LOST, SIGNALLED, UNAVAILABLE, complain
from fencelock.cli.run import events as event_codes
from fencelock.cli.run.command import Command
from fencelock.cli.run.events import Events
from fencelock.cli.run.signals import Signals
from fencelock.cli.run.supervisor import Supervisor
from fencelock.cli.run.wait_note import WaitNote, holder_text
from fencelock.cli.run.watchdog import Watchdog

if TYPE_CHECKING:
    from fencelock.cli.run.once import CommandOnce
    from fencelock.cli.run.options import RunOptions


class Outcome(NamedTuple):
    """How one run ended: its exit code, and for how long the lock was held."""

    code: int
    term_s: float


def hold_and_run(options: RunOptions) -> Outcome:
    """Run CMD under the lock; the code is AGAIN if it leads and its lease was lost, or not to be had."""
    command = Command(options.words)
    events = Events()
    watchdog = Watchdog(command.pid, events=events.writer, grace_ms=options.grace_ms)
    signals = Signals(events, children=(command.pid, watchdog.pid))
    grace_ms, leads = options.grace_ms, options.leads
    supervisor = Supervisor(command, watchdog, events=events, signals=signals, grace_ms=grace_ms, is_bounded=leads)
    session = RunSession(options, supervisor, watchdog, events, signals)
    try:
        code = session.run()
    except BaseException as error:
        # A client's callback may have turned InterruptedWait into another exception: the signal is still the cause.
        if signals.interrupted_by is not None:
            return Outcome(SIGNALLED + signals.interrupted_by, session.term_s)
        if not (leads and may_campaign_again(error) and signals.may_begin_anew()):
            raise
        complain(str(error))
        return Outcome(AGAIN, session.term_s)
    else:
        is_again = leads and session.is_lost and signals.may_begin_anew()
        return Outcome(AGAIN if is_again else code, session.term_s)
    finally:
        command.signal(signal.SIGKILL)  # Does nothing once CMD was reaped.


class RunSession:
    """The lease of one run: acquiring it, reporting its renewals and its loss, and ending it."""

    def __init__(
        self, options: RunOptions, supervisor: Supervisor, watchdog: Watchdog, events: Events, signals: Signals
    ) -> None:
        self._options = options
        self._supervisor = supervisor
        self._watchdog = watchdog
        self._events = events
        self._signals = signals
        self._lease: fencelock.Lease | None = None
        self.is_lost = False
        self._loss = "it could not be renewed in time"
        self._once: CommandOnce | None = None
        self._term_began_s: float | None = None

    @property
    def term_s(self) -> float:
        """For how long the lock has been held; 0 before: to wait for it is no term."""
        return 0.0 if self._term_began_s is None else time.monotonic() - self._term_began_s

    def run(self) -> int:
        """Acquire, run CMD, release; return the exit code."""
        _show_warnings()
        _check_guards(self._options.guards)
        if self._options.once is not None:
            from fencelock.cli.run.once import CommandOnce

            self._once = CommandOnce(self._options.once, self._options)
        with fencelock.connect(self._options.source, hooks=fencelock.Hooks(on_renewed=self._on_renewed)) as source:
            self._announce_new_file(source.url)
            lease = self._lease = self._acquire(source)
            self._term_began_s = time.monotonic()
            if self._was_done(lease):
                lease.release()
                return 0
            code = self._run_under(lease)
            is_recorded = code != 0 or self._once is None or self._once.record(lease)
            is_closed = self._close_guards(lease)
            # A lease that ended while CMD was finishing may show only in the source's answer to the release.
            self.is_lost = not lease.release() or self._supervisor.is_lost
            if self.is_lost:
                complain(f"lock {lease.lock!r}: the lease was lost ({self._why_lost(lease)}); CMD ended with {code}")
        return LEASE_LOST if self.is_lost else code or (0 if is_closed and is_recorded else UNAVAILABLE)

    def _acquire(self, source: fencelock.Source) -> fencelock.Lease:
        options = self._options
        lock = source.lock(
            options.name, ttl=options.ttl, timeout=options.wait, on_lost=self._on_lost, holder=options.holder
        )
        with self._signals.interrupting():
            time.sleep(options.pause_s)
            with WaitNote(source, options):
                lease = lock.acquire(blocking=options.wait != 0)
        if lease is None:
            raise fencelock.AcquireTimeoutError(_not_obtained_text(source, options))
        return lease

    def _was_done(self, lease: fencelock.Lease) -> bool:
        if self._once is None:
            return False
        with self._signals.interrupting():
            return self._once.was_done(lease)

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

    def _why_lost(self, lease: fencelock.Lease) -> str:
        try:
            lease.check_valid()
        except fencelock.LeaseLostError as error:
            return error.reason
        except fencelock.LeaseError:
            pass
        return self._loss

    def _close_guards(self, lease: fencelock.Lease) -> bool:
        """Make the lease's token stale at the guards (G10); return whether that succeeded at all of them."""
        if not self._options.guards:
            return True
        from fencelock._api.guard import guards_of
        from fencelock.stores.registry import guard_url

        is_closed = True
        for url in self._options.guards:
            try:
                found = guards_of(url, lease.lock)
                if not found:
                    complain(
                        f"{guard_url(url)}: no resource there is bound to lock {lease.lock!r}, so nothing was closed: "
                        f"check --guard, and the lock's name"
                    )
                for guard in found:
                    guard.close(lease)
            except fencelock.FencelockError as error:
                where = guard_url(url)
                complain(f"the guard {where} was not closed, so processes with CMD's token can still write: {error}")
                is_closed = False
        return is_closed

    def _announce_new_file(self, url: str) -> None:
        """Name the file of a source before it is created: a mistyped one excludes nobody, and each user has another
        default.
        """
        path = os.path.abspath(url.removeprefix("sqlite:///"))
        if url.startswith("sqlite:") and not os.path.exists(path):
            whose = "" if is_named(self._options.source) else " for this user; --source names another source"
            complain(f"locks are kept in {path}, which is created now{whose}")

    def _on_renewed(self, _event: fencelock.Event) -> None:
        """Tell the watchdog the new deadline. Called in one of the keeper's threads."""
        if self._lease is not None:
            self._watchdog.rely_until(self._lease.deadline_ms)

    def _on_lost(self, reason: str) -> None:
        """Tell the watchdog and the supervisor. Called in one of the keeper's threads."""
        self._loss = reason
        self._watchdog.lease_is_lost()
        self._events.notify(event_codes.LEASE_LOST)


def _check_guards(urls: tuple[str, ...]) -> None:
    """Raise ConfigError for a URL that names no guard, before the lock is taken."""
    if urls:
        from fencelock.stores.registry import guard_store

        for url in urls:
            guard_store(url)


def _not_obtained_text(source: fencelock.Source, options: RunOptions) -> str:
    holder = holder_text(source.info(options.name))
    waited = f" within {options.wait:g} s" if options.wait else ""
    if holder is None:
        return f"lock {options.name!r} was not obtained{waited}; it is free or promised to a waiter now: try again"
    return f"lock {options.name!r} was not obtained{waited}: {holder}"


def _show_warnings() -> None:
    """Print the library's warnings as lines of this command.

    Events are left out, because the command reports the outcome itself, and so are the client libraries' own messages,
    because the library reports broken connections too.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("fencelock: %(message)s"))
    handler.addFilter(lambda record: record.name == "fencelock" and not hasattr(record, "fencelock_event"))
    logging.getLogger("fencelock").addHandler(handler)
