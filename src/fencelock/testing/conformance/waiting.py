"""Checks of a source's queues: rules H7 and H8."""

import select

from fencelock import protocol as ask
from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.protocol import SourceFlow
from fencelock.testing.conformance.rig import require
from fencelock.testing.conformance.source_rig import TRIES, Claimant, SourceRig, ask_flow
from fencelock.testing.runners import REQUEST_TIMEOUT_S, AsyncRunner, Attempt, acquire, release

TASKS = 8
LOOK_AGAIN_MS = 5
POLLS_PER_TTL = 4


class WaitingChecks(SourceRig):
    """Checks of the order of waiters."""

    def test_waiters_are_served_in_the_order_in_which_they_came(self) -> None:
        """H7: first in, first out."""
        holder, waiters = self._queue_of(3)
        require(self.info().waiters == tuple(waiter.holder for waiter in waiters), "inspection shows the queue's order")
        for number, waiter in enumerate(waiters):
            holder.release()
            for later in waiters[number + 1 :]:
                reply = later.poll()
                require(isinstance(reply, ask.Queued), f"H7: the free lock is for the head of the queue, not {reply}")
            waiter.granted(waiter.poll(), "H7: the head of the queue gets the free lock")
            holder = waiter

    def test_a_newcomer_does_not_barge_in(self) -> None:
        """H7: only the head of the queue can take a free lock."""
        holder, (waiter,) = self._queue_of(1)
        holder.release()
        require(isinstance(self.claimant().acquire(), ask.Busy), "H7: a newcomer that cannot wait finds it busy")
        newcomer = self.claimant()
        newcomer.queue()
        waiter.granted(waiter.poll(), "H7: the waiter gets the lock")
        waiter.release()
        newcomer.granted(newcomer.poll(), "H7: and then the newcomer")

    def test_a_waiter_that_asks_again_keeps_its_one_place(self) -> None:
        """H7: the reply that confirms the queue position may be lost."""
        holder, (first, second) = self._queue_of(2)
        for _ in range(3):
            first.queue()
            require(isinstance(first.poll(), ask.Queued), "H7: a waiter polls without losing its place")
        require(len(self.info().waiters) == len((first, second)), f"H7: one claim has one place: {self.info()}")
        holder.release()
        first.granted(first.poll(), "H7: asking again does not send a waiter to the end of the queue")
        require(isinstance(second.poll(), ask.Queued), "H7: nor does it give it the next one's turn")

    def test_a_waiter_that_leaves_makes_room(self) -> None:
        """H7: a waiter that gives up leaves the queue."""
        holder, (leaver, stayer) = self._queue_of(2)
        require(not leaver.release().was_held, "a waiter holds nothing")
        require(self.info().waiters == (stayer.holder,), "H7: a waiter that leaves is no longer in the queue")
        holder.release()
        require(isinstance(leaver.poll(), ask.ClaimEnded), "H4: nor does it come back")
        stayer.granted(stayer.poll(), "H7: the next one is served")

    def test_a_dead_waiter_blocks_no_longer_than_its_ttl(self) -> None:
        """H7: a dead waiter no longer polls."""
        holder = self.claimant()
        holder.hold()
        dead, alive = self.brief(), self.claimant()
        dead.queue()
        alive.queue()
        holder.release()
        self.let_expire()
        alive.granted(alive.poll(), "H7: a waiter whose own ttl has passed is passed over")

    def test_a_lone_dead_waiter_blocks_nobody(self) -> None:
        """H7: not even a newcomer that cannot wait."""
        holder, dead = self.claimant(), self.brief()
        holder.hold()
        dead.queue()
        holder.release()
        self.let_expire()
        self.claimant().hold()

    def test_a_waiter_whose_place_expired_is_not_granted(self) -> None:
        """H8: etcd#11456, CURATOR-604: a waiter slept past its ttl, so its lease has expired or the lock is taken."""
        holder = self.claimant()
        holder.hold()
        sleeper = self.brief()
        sleeper.queue()
        self.let_expire()
        holder.release()
        for reply in (sleeper.poll(), self.ask(sleeper.request(may_wait=True)), sleeper.acquire()):
            require(isinstance(reply, ask.ClaimEnded), f"H8: a place that expired is not granted: {reply}")
        require(not self.info().is_held, "H8: and the lock stays free")

    def test_a_waiter_whose_place_expired_does_not_keep_it(self) -> None:
        """H8: while the lock is held, asking again does not bring the place back."""
        holder = self.claimant()
        holder.hold()
        sleeper = self.brief()
        sleeper.queue()
        self.let_expire()
        require(isinstance(sleeper.poll(), ask.ClaimEnded), "H8: a place that expired is gone")
        require(not self.info().waiters, "H8: an expired waiter is not in the queue")

    def test_polling_keeps_a_place(self) -> None:
        """H8: as long as the waiter asks within its ttl, which a slow machine may miss a few times."""
        self.claimant().hold()
        for _ in range(TRIES):
            waiter = self.brief()
            waiter.queue()
            if all(self._keeps_place(waiter) for _ in range(2 * POLLS_PER_TTL)):
                return
        raise AssertionError("H8: a waiter that asks in time keeps its place, for longer than one ttl")

    def _keeps_place(self, waiter: Claimant) -> bool:
        self.pass_time(self.short_ttl_ms // POLLS_PER_TTL)
        try:
            return isinstance(waiter.poll(), ask.Queued)
        except (SourceUnavailableError, OutcomeUnknownError):  # A slow machine may lose a brief session, too.
            return False

    def test_a_poll_that_keeps_no_place_takes_the_turn_that_has_come(self) -> None:
        """H7: a store may answer it by reading, as long as the lock is not free."""
        holder, (waiter,) = self._queue_of(1)
        reply = waiter.poll(keeps_place=False)
        require(isinstance(reply, ask.Queued), f"a waiter polls while the lock is held: {reply}")
        holder.release()
        waiter.granted(waiter.poll(keeps_place=False), "H7: the head of the queue gets the free lock by any poll")
        require(self.info().holder == waiter.holder, f"H7: and holds it: {self.info()}")

    def test_a_poll_without_a_place_is_over(self) -> None:
        """H8: a claim that never queued has no turn."""
        require(isinstance(self.claimant().poll(), ask.ClaimEnded), "a claim that never queued has no place")
        require(not self.info().is_held, "and gets nothing")

    def test_a_waiter_is_told_when_to_look_again(self) -> None:
        """H7: within its own ttl, so that its place does not expire while it sleeps."""
        _, waiters = self._queue_of(2)
        for waiter in waiters:
            reply = waiter.queue()
            require(0 < reply.wait_ms < waiter.ttl_ms, f"H7: a waiter sleeps for less than its ttl: {reply}")

    def test_a_queue_moves_on_when_its_holder_expires(self) -> None:
        """H7: an expired lease needs no release."""
        self.brief().hold()
        waiter = self.claimant()
        self.ask(waiter.request(may_wait=True))  # Granted at once, if the machine was so slow.
        self.let_expire()
        waiter.granted(waiter.poll(), "H7: the head of the queue takes over an expired lease")

    def test_a_served_waiter_holds_the_lock_for_as_long_as_it_is_told(self) -> None:
        """H1: a process that has seen the release before the waiter did must not count from then."""
        if not self.survives_reopening or (self.clock is None and self.store.capabilities.clock == "store"):
            return  # The clock of a store decides for all processes alike.
        for _ in range(TRIES):
            holder, waiter, onlooker = self.claimant(), self.brief(), self.claimant()
            holder.hold()
            waiter.queue()
            holder.release()
            here, elsewhere = self.store, self.make_store(self.url)
            self.store = elsewhere
            onlooker.acquire()
            self.pass_time(self.short_ttl_ms * 3 // 4)
            self.store, sent_us = here, self.now_us()
            grant = waiter.poll()
            if isinstance(grant, ask.Granted):  # Else the machine was so slow that the waiter's place has expired.
                self.pass_time(grant.remaining_ms // 2)
                self.store = elsewhere
                reply = onlooker.acquire()
                is_over = self.now_us() >= sent_us + 1000 * grant.remaining_ms
                require(is_over or isinstance(reply, ask.Busy), f"H1: others wait for as long as {grant}: {reply}")
                return
            waiter.release()
        raise AssertionError("H7: a waiter is served before its place expires")

    def test_a_break_lets_the_queue_move_on(self) -> None:
        """G10: the next holder, with its old queue position or a new one, gets a token above the breaker's."""
        _, (waiter,) = self._queue_of(1)
        broken = self.break_lock()
        if self.break_keeps_queue:
            grant = waiter.granted(waiter.poll(), "a broken lock goes to the head of its queue")
        else:
            reply = waiter.poll()
            require(isinstance(reply, ask.ClaimEnded), f"G10: a place from before a break is over: {reply}")
            grant = self.claimant().hold()
        require(grant.token > broken.token, f"G10: the next token {grant.token} is above the breaker's {broken.token}")

    def test_the_head_of_the_queue_is_told_of_a_release(self) -> None:
        """H7: applies to stores that declare notifications."""
        self.check_release_is_told()

    def check_release_is_told(self) -> None:
        """Fail unless a release notifies the head of the queue, if the store declares notifications."""
        if not self.store.capabilities.notifies:
            return
        holder, (waiter,) = self._queue_of(1)
        channel = self.store.listen(waiter.lock, waiter.claim)
        try:
            require(isinstance(waiter.poll(), ask.Queued), "the lock is held")
            holder.release()
            hearing = select.poll()
            hearing.register(channel.fileno(), select.POLLIN)
            require(
                hearing.poll(REQUEST_TIMEOUT_S * 1000),
                "H7: a store that notifies tells the head of the queue of a release",
            )
            channel.drain()
            require(not hearing.poll(0), "draining the channel removes its notifications")
        finally:
            channel.close()

    def _queue_of(self, length: int) -> tuple[Claimant, list[Claimant]]:
        holder = self.claimant()
        holder.hold()
        waiters = [self.claimant() for _ in range(length)]
        for waiter in waiters:
            waiter.queue()
        return holder, waiters


class TurnChecks(SourceRig):
    """Checks of the order of tasks, which have one; threads that call at the same time have none."""

    runner: AsyncRunner

    def test_acquires_of_one_tick_are_served_in_the_order_of_their_calls(self) -> None:
        """H7: their requests travel on several connections, and would overtake each other."""
        holder = self.claimant()
        holder.hold()
        served: list[int] = []

        def serve(number: int) -> SourceFlow[None]:
            attempt = Attempt("lock", f"task-{number}", self.long_ttl_ms)
            yield from acquire(attempt, may_wait=True, timeout_ms=None)
            served.append(number)
            yield from release("lock", attempt.claim or "")

        def let_go() -> SourceFlow[None]:
            while len((yield from ask.ask(ask.Inspect("lock"))).waiters) < TASKS:
                yield ask.Wait(LOOK_AGAIN_MS)
            yield from ask_flow(ask.Release("lock", holder.claim))

        self.runner.take_turns(self.store, "lock", [serve(number) for number in range(TASKS)], let_go())
        require(served == sorted(served), f"H7: {TASKS} tasks that called in order are served in this order: {served}")
