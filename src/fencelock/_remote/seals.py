"""Seals as a client remembers them: the service that made one has many processes, and forgets (G9).

A service names each resource that has admitted a request by a seal id, and its client repeats the ids that it was told.
For a repeated id the service presents the token and never raises the mark again. A service that passes its sequencer on
to another one is that one's client for a single request: it has its own client remember those seals too.

Promise: a client notices an answer that no guard has admitted, and one that was admitted for another token. An id says
nothing about the guard's URL. Never: an id forgotten.
"""

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from hashlib import sha256
from typing import NamedTuple
from weakref import WeakKeyDictionary

from fencelock._api.credentials import Credential
from fencelock._flows.tenure import Key, Tenure
from fencelock._platform import at_fork
from fencelock.errors import GuardError, UnfencedWriteError

MAX_SEAL_IDS = 128
"""Resources of one service that one tenure may seal. Their marks are 6 kB of an answer; some clients and proxies read
8 kB."""
SEAL_ID_CHARACTERS = 16
MAX_ID_PARTS = 4
"""A resource's own id, after those of the services on the way to it: at most three."""


class RemoteMark(NamedTuple):
    """What a service says of one resource that has admitted a request: the resource's mark, and its seal id.

    The id of a resource of another service, to which this one has passed its sequencer on, begins with that service's.
    """

    token: int
    seal_id: str


def seal_id(key: Key) -> str:
    """Return the id by which a service names a resource: 16 hexadecimal digits."""
    url, resource = key
    return sha256(f"fencelock seal\0{url}\0{resource}".encode()).hexdigest()[:SEAL_ID_CHARACTERS]


def late_seal(tenure: Tenure, service: str, how: str) -> GuardError | None:
    """Return the error of a request that would seal a service after the tenure has read elsewhere (G2), or None.

    `how`: the way to seal the service by itself.
    """
    if not tenure.has_read or tenure.has_opened(_whole(service)):
        return None
    return GuardError(
        f"{service} would be sealed after this tenure has read elsewhere: a stale write could land there in between. "
        f"Seal it before the first read, by {how}; say independent=True if nothing written to it depends on what was "
        f"read elsewhere"
    )


class PassedSeals:
    """What a service was told, in one request, of the seals of other services, and what it tells of them.

    It stands between its client, which remembers, and the services that it passes its sequencer on to.
    """

    __slots__ = ("_has_answered", "_passed", "_told")

    def __init__(self, told: Iterable[str]) -> None:
        """`told`: the seal ids that the client repeats."""
        self._told = tuple(one for one in told if len(one) > SEAL_ID_CHARACTERS)
        self._passed: dict[str, None] = {}
        self._has_answered = False

    def ids_of(self, service: str) -> tuple[str, ...]:
        """Return the seal ids to repeat to a service, as that one told them."""
        begin = seal_id(_whole(service))
        return tuple(one.removeprefix(begin) for one in self._told if one.startswith(begin))

    def note(self, service: str, told: str) -> None:
        """Note what a service told; GuardError if the client knows nothing of it, and cannot be told any more."""
        passed = seal_id(_whole(service)) + told
        if self._has_answered and passed not in self._told and passed not in self._passed:
            raise GuardError(
                f"{service} is called after the answer has begun, so that the client cannot be told of its seals: call "
                f"it before the first part of the answer is sent"
            )
        if len(passed) > SEAL_ID_CHARACTERS * MAX_ID_PARTS:
            raise GuardError(f"{service} is too many services away from the client: at most {MAX_ID_PARTS - 1}")
        self._passed[passed] = None

    def begin_answer(self) -> tuple[str, ...]:
        """Return the ids to tell the client; from now on there are no others."""
        self._has_answered = True
        return tuple(self._passed)


def note_admitted(tenure: Tenure, service: str, *, is_seal: bool) -> None:
    """Note that a service has admitted the tenure; a request that does more than to seal has read there."""
    tenure.remember((_whole(service),), (_whole(service),))
    if not is_seal:
        tenure.begin_reading((_whole(service),))


def _whole(service: str) -> Key:
    """Return what a tenure remembers of a whole service, beside the resources of its own guards."""
    return service, service


class FirstRequests:
    """The requests of one tenure that are on their way without a seal to repeat: one for each service.

    Two must not be on their way at once: the later one could make a lost seal again, after the earlier one was read.
    Threads and tasks wait for one another.
    """

    def __init__(self) -> None:
        self._ends: dict[str, Future[None]] = {}
        self._lock = threading.RLock()  # The garbage collector ends requests too, in any line.

    def take(self, origin: str, own: Future[None]) -> Future[None] | None:
        """Make this request the first one to a service; if there is one, return what it ends with."""
        with self._lock:
            first = self._ends.setdefault(origin, own)
            if first.done():  # A signal handler's exception left it there.
                first = self._ends[origin] = own
            return None if first is own else first

    def end(self, origin: str, own: Future[None]) -> None:
        """End a request, whether it is the first one or not; an interrupted caller may repeat this."""
        with self._lock:
            if self._ends.get(origin) is own:
                if not own.done():
                    own.set_result(None)
                del self._ends[origin]


def wait_for_each(others: Iterator[Future[None]], limit_s: float | None) -> None:
    """Wait for the end of each request; TimeoutError if that takes longer in all."""
    ends = None if limit_s is None else time.monotonic() + limit_s
    for other in others:
        other.result(None if ends is None else max(0.0, ends - time.monotonic()))


async def wait_for_each_async(others: Iterator[Future[None]], limit_s: float | None) -> None:
    """As `wait_for_each`, in a task."""
    async with asyncio.timeout(limit_s):
        for other in others:
            # A task that is cancelled must not end the other request for everybody.
            await asyncio.shield(asyncio.wrap_future(other))


class PassingTenure(Tenure):
    """A tenure in one request of another process's holder."""

    __slots__ = ("passed",)
    passed: PassedSeals


class SealMemory:
    """The seals that one tenure was told of, by the origin of the service.

    Any thread may use it: each change is one step of the interpreter, and nothing is ever removed.
    """

    def __init__(self, token: int, passed: PassedSeals | None = None) -> None:
        """`passed`: of a tenure whose holder is another service's client, which remembers more than this process."""
        self.first_requests = FirstRequests()
        self._token = token
        self._passed = passed
        self._ids: dict[str, dict[str, None]] = {}

    def ids(self, origin: str) -> tuple[str, ...]:
        """Return the seal ids to repeat to a service, in the order in which it told them."""
        return tuple(self._of(origin))

    def _of(self, origin: str) -> dict[str, None]:
        if (ids := self._ids.get(origin)) is None:
            told = () if self._passed is None else self._passed.ids_of(origin)
            ids = self._ids.setdefault(origin, dict.fromkeys(told))
        return ids

    def others(self, origin: str, own: Future[None]) -> Iterator[Future[None]]:
        """Yield each request to wait for: as long as the service has told of no seal, one is sent at a time."""
        while not self._of(origin) and (other := self.first_requests.take(origin, own)) is not None:
            yield other

    def remember(self, origin: str, marks: Iterable[RemoteMark]) -> None:
        """Remember the seals of an answer, whatever its status; UnfencedWriteError if one is for another token."""
        for mark in marks:
            if mark.token != self._token:
                raise UnfencedWriteError(
                    f"{origin} answered with the mark {mark.token} to a request with token {self._token}: the answer "
                    f"is another request's, from a cache or a proxy in between. What was done is unknown until read"
                )
            self._remember(origin, mark.seal_id)

    def _remember(self, origin: str, told: str) -> None:
        ids = self._of(origin)
        if told not in ids and len(ids) >= MAX_SEAL_IDS:
            raise GuardError(
                f"one tenure may seal {MAX_SEAL_IDS} resources of {origin} at most: protect more by one resource"
            )
        if self._passed is not None:
            self._passed.note(origin, told)
        ids[told] = None

    def check_fenced(self, origin: str, marks: Iterable[RemoteMark]) -> None:
        """Remember the seals of a successful answer; UnfencedWriteError if it has none."""
        told = tuple(marks)
        self.remember(origin, told)
        if not told:
            raise UnfencedWriteError(
                f"{origin} answered a request with token {self._token} without a mark: no guard has admitted it, or a "
                f"cache answered. What the request did is not fenced: have its handler use a guard with "
                f"`sequencer()`, or send such requests without the lease"
            )


class SealMemories:
    """The memories of the tenures of this process, each as long as its tenure. A forked child goes on with a copy."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Tenure, SealMemory] = WeakKeyDictionary()
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Forget what other threads of the parent held or sent when this process was forked."""
        self._lock = threading.Lock()
        for memory in tuple(self._known.values()):
            memory.first_requests = FirstRequests()

    def of(self, credential: Credential) -> SealMemory:
        """Return the memory that all clients of a tenure share, or one of them could seal what another has read."""
        tenure = credential.tenure
        passed = tenure.passed if isinstance(tenure, PassingTenure) else None
        with self._lock:
            return self._known.setdefault(tenure, SealMemory(credential.sequencer.token, passed))


SEAL_MEMORIES = SealMemories()
at_fork(after_in_child=SEAL_MEMORIES.renew_after_fork)
