"""The base class of the source checks: claimants of a lock that send one request at a time to a fresh source.

Promise: every request goes through the library's own driver, so the checks send the same requests as production. When
a request finds its block of tokens spent, the driver reserves a new block and repeats the request, as in acquire.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from fencelock import LockInfo, OutcomeUnknownError, SourceInfo, SourceUnavailableError
from fencelock import protocol as requests
from fencelock.protocol import DriverRequest, SourceFlow, SourceRequest, SourceStore, ask
from fencelock.testing.conformance.rig import Rig, require
from fencelock.testing.runners import MIN_CLAIMS, AsyncRunner, SyncRunner, source_store

Reply = TypeVar("Reply")
SHORT_TTL_MS = 100
LONG_TTL_MS = 30_000
TRIES = 10


def ask_flow(request: SourceRequest | DriverRequest) -> SourceFlow[Any]:
    """Send a request and return the reply; reserve a block of tokens when the last block is spent."""
    while isinstance(reply := (yield request), requests.BlockSpent):
        yield requests.ReserveBlock()
    return reply


def draw_flow() -> SourceFlow[tuple[str, int]]:
    """Draw a claim."""
    return (yield from ask(requests.DRAW))


class Claimant:
    """One claim on one lock."""

    def __init__(self, rig: "SourceRig", lock: str, ttl_ms: int) -> None:
        self.rig = rig
        self.lock = lock
        self.ttl_ms = ttl_ms
        rig.claimants += 1
        self.holder = f"claimant-{rig.claimants}"
        self._draw()

    def _draw(self) -> None:
        self.rig.tick()
        self.claim, self.born_us = self.rig.run(draw_flow())

    def request(self, *, may_wait: bool = False) -> requests.Acquire:
        """Return this claim's request for the lock, the same each time."""
        return requests.Acquire(self.lock, self.claim, self.holder, self.ttl_ms, self.born_us, may_wait)

    def acquire(self) -> Any:
        """Ask for the lock without waiting."""
        return self.rig.ask(self.request())

    def queue(self) -> requests.Queued:
        """Ask for a lock that is held, and join its queue."""
        reply = self._settled(may_wait=True)
        require(
            isinstance(reply, requests.Queued), f"{self.lock!r} is held, so a waiting acquire is queued, not {reply}"
        )
        return reply  # type: ignore[no-any-return]

    def hold(self) -> requests.Granted:
        """Acquire a lock that must be free. A source may refuse a claim that it cannot distinguish from a forgotten
        one, after a purge for example. Then draw a new claim, as every acquire does, at most MIN_CLAIMS in total.
        """
        reply = self._settled()
        for _ in range(MIN_CLAIMS - 1):
            if not isinstance(reply, requests.ClaimEnded):
                break
            self._draw()
            reply = self._settled()
        return self.granted(reply, f"lock {self.lock!r} is free, so acquire is granted")

    def _settled(self, *, may_wait: bool = False) -> Any:
        """Ask for the lock. A slow machine may lose a brief session meanwhile: then ask again, as flows do."""
        for _ in range(TRIES if self.ttl_ms == self.rig.short_ttl_ms else 0):
            try:
                return self.rig.ask(self.request(may_wait=may_wait))
            except (SourceUnavailableError, OutcomeUnknownError):
                continue
        return self.rig.ask(self.request(may_wait=may_wait))

    def granted(self, reply: Any, rule: str) -> requests.Granted:
        """Return the reply if it is a grant; otherwise fail and name the rule."""
        require(isinstance(reply, requests.Granted), f"{rule}; the reply was {reply}")
        return reply  # type: ignore[no-any-return]

    def poll(self, *, keeps_place: bool = True) -> Any:
        """Ask whether this waiter's turn has come."""
        return self.rig.ask(requests.Poll(self.lock, self.claim, keeps_place))

    def release(self) -> requests.Released:
        """End the claim."""
        return self.rig.ask(requests.Release(self.lock, self.claim))  # type: ignore[no-any-return]

    def renew(self) -> str | None:
        """Renew this lease only; return the reason if the source refuses."""
        return self.rig.renew(self).lost.get(self.claim)


class SourceRig(Rig):
    """A fresh source for each check. Subclass it through `SourceConformance`, and define `make_url`."""

    store: SourceStore
    runner: SyncRunner | AsyncRunner
    claimants: int
    runner_type: Callable[[Callable[[], int]], SyncRunner | AsyncRunner] = SyncRunner
    has_epochs = True
    """Whether the source can begin a new history (T7)."""
    has_purge = True
    """Whether the source can forget idle locks."""
    break_keeps_queue = True
    """Whether waiters keep their queue positions when the lock is broken. A store that mints tokens with the queue
    entries cannot keep them: a waiter's token would be below the breaker's, so the waiter must queue again.
    """
    survives_reopening = True
    """Whether a second store made from the same URL is the same source."""
    shows_spent_tokens = True
    """Whether a free lock shows the last token issued for it."""
    counts_alone = True
    """Whether nothing but this source raises the counter that it draws tokens from: not so on a shared server where
    all sources draw from one counter.
    """
    ends_unrenewed_leases = True
    """Whether the store itself ends a lease that nobody renews. A client library that keeps its session alive keeps the
    lease for as long as its process lives: there the process ends it, which another one cannot see.
    """
    renewal_lag_ms = 0
    """How much less than the ttl a renewal may leave, in stores that renew a session instead of the lease."""
    short_ttl_ms = SHORT_TTL_MS
    """A ttl short enough for a check to wait for; raise it to the smallest ttl that the store grants."""
    long_ttl_ms = LONG_TTL_MS
    """A ttl longer than any check."""
    churn = 50
    """Leases that begin and end while a source must remember an ended claim: more than it remembers individually."""
    many_names = 1000
    """Locks held at once to detect colliding names: enough to detect a 16-bit hash."""

    def make_url(self) -> str:
        """Return the URL of an unused source, a new one for each check. `self.folder` is private to the check."""
        raise NotImplementedError("define make_url(self) -> str: the URL of a fresh source")

    def make_store(self, url: str) -> SourceStore:
        """Return the store of a URL; override it for a store that is not registered."""
        return source_store(url)

    def setup_method(self) -> None:
        """Create a fresh source."""
        super().setup_method()
        self.url = self.make_url()
        self.store = self.make_store(self.url)
        self.runner = self.runner_type(self.now_us)
        self.claimants = 0
        capabilities = self.store.capabilities
        for ttl_ms in (self.short_ttl_ms, self.long_ttl_ms):
            require(
                capabilities.ttl_min_ms <= ttl_ms <= capabilities.ttl_max_ms and not ttl_ms % capabilities.ttl_step_ms,
                f"set short_ttl_ms and long_ttl_ms to what the store grants; {ttl_ms} is outside {capabilities}",
            )

    def teardown_method(self) -> None:
        """Close everything that the check opened."""
        self.runner.close()
        super().teardown_method()

    # --- used by the checks -------------------------------------------------------------------------------------------
    def run(self, flow: SourceFlow[Reply]) -> Reply:
        """Run a flow on the source."""
        return self.runner.run(self.store, flow)

    def ask(self, request: SourceRequest) -> Any:
        """Send one request to the source."""
        return self.run(ask_flow(request))

    def claimant(self, lock: str = "lock", ttl_ms: int | None = None) -> Claimant:
        """Return a new claimant, with the long ttl by default."""
        return Claimant(self, lock, self.long_ttl_ms if ttl_ms is None else ttl_ms)

    def brief(self, lock: str = "lock") -> Claimant:
        """Return a new claimant with the short ttl."""
        return self.claimant(lock, self.short_ttl_ms)

    def reopen(self) -> None:
        """Go on with another store of the same URL, which has seen nothing of what was before, as a new process."""
        self.store = self.make_store(self.url)

    def let_expire(self) -> None:
        """Wait until a lease with the short ttl has expired."""
        self.pass_time(self.short_ttl_ms)

    def renew(self, *leases: Claimant) -> requests.Renewed:
        """Renew leases in one batch."""
        return self.run(ask(requests.Renew(tuple((lease.lock, lease.claim) for lease in leases))))

    def info(self, lock: str = "lock") -> LockInfo:
        """Inspect a lock and return the result."""
        return self.run(ask(requests.Inspect(lock)))

    def source(self) -> SourceInfo:
        """Inspect the source and return the result."""
        return self.run(ask(requests.ReadSource()))

    def break_lock(self, lock: str = "lock", reason: str = "a check") -> requests.Broken:
        """Break the lock: end its present lease."""
        claim, _ = self.run(draw_flow())
        return self.ask(requests.Break(lock, claim, "an operator", reason))  # type: ignore[no-any-return]

    def raise_epoch(self) -> SourceInfo:
        """Begin a new history."""
        info = self.run(ask(requests.RaiseEpoch(self.source().history_id, "a check")))
        if info is None:
            raise AssertionError("raising the epoch of the present history succeeds")
        return info
