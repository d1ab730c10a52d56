"""Checks of a source's tokens: rules T1 to T7."""

import dataclasses
from itertools import pairwise

from fencelock import Sequencer
from fencelock import protocol as ask
from fencelock.protocol import EPOCH_STRIDE, MAX_TOKEN, SourceFlow
from fencelock.testing.conformance.rig import require
from fencelock.testing.conformance.source_rig import SourceRig
from fencelock.testing.runners import Attempt, acquire, release

HAMMERS = 4
BLOWS = 5


class TokenChecks(SourceRig):
    """Checks of T1 to T7, as far as one process can observe them."""

    def test_a_token_is_an_integer_from_1(self) -> None:
        """T2: 1 <= token < 2**63, and not a bool."""
        token = self.claimant().hold().token
        require(type(token) is int and 1 <= token <= MAX_TOKEN, f"T2: a token is 1 <= int < 2**63, not {token!r}")

    def test_a_new_grant_gives_a_higher_token(self) -> None:
        """T4: even if the same holder acquires the lock again at once."""
        tokens = []
        for _ in range(20):
            claimant = self.claimant()
            tokens.append(claimant.hold().token)
            claimant.release()
        self._require_rising(tokens, "T4: each grant gives a higher token")

    def test_a_token_rises_after_expiry(self) -> None:
        """T4, T6: a claim that takes over an expired lease gets a higher token."""
        tokens = [self.brief().hold().token]
        self.let_expire()
        tokens.append(self.claimant().hold().token)
        self._require_rising(tokens, "T4: taking over an expired lease gives a higher token")

    def test_a_token_rises_over_a_waiter(self) -> None:
        """T4: a grant to a waiter is a grant."""
        first, second = self.claimant(), self.claimant()
        tokens = [first.hold().token]
        second.queue()
        first.release()
        tokens.append(second.granted(second.poll(), "the head of the queue gets the free lock").token)
        self._require_rising(tokens, "T4: a waiter's grant gives a higher token")

    def test_a_retry_with_the_same_claim_gives_the_same_token(self) -> None:
        """T3: the reply may have been lost, and the client asks again."""
        holder = self.claimant()
        token = holder.hold().token
        for _ in range(3):
            again = holder.granted(holder.acquire(), "T3: the holder's own repeated acquire is granted again")
            require(again.token == token, f"T3: a retry gives the same token {token}, not {again.token}")
        require(self.info().token == token, "T3: a retry issues no token")

    def test_a_waiter_that_asks_again_gets_the_same_token(self) -> None:
        """T3: the reply to a granted poll may be lost as well."""
        first, waiter = self.claimant(), self.claimant()
        first.hold()
        waiter.queue()
        first.release()
        token = waiter.granted(waiter.poll(), "the head of the queue gets the free lock").token
        for again in (waiter.poll(), self.ask(waiter.request(may_wait=True))):
            require(waiter.granted(again, "T3: it is granted again").token == token, "T3: with the same token")

    def test_renewal_keeps_the_token(self) -> None:
        """T3: the token belongs to the tenure, not to a renewal."""
        holder = self.claimant()
        token = holder.hold().token
        require(holder.renew() is None, "a running lease can be renewed")
        require(self.info().token == token, f"T3: a renewal keeps token {token}, not {self.info().token}")

    def test_release_keeps_the_counter(self) -> None:
        """T6: with Litestream's S3 leaser, a release deletes the record, and the next token is 1."""
        first = self.claimant()
        token = first.hold().token
        first.release()
        if self.shows_spent_tokens:
            require(self.info().token == token, "T6: a free lock shows the last token issued")
        self._require_rising([token, self.claimant().hold().token], "T6: release does not reset the counter")

    def test_purge_keeps_the_counter(self) -> None:
        """T6: a purge forgets the lock, but not its counter."""
        if not self.has_purge:
            return
        first = self.claimant()
        token = first.hold().token
        first.release()
        require(self.ask(ask.Purge()) == 1, "purge forgets the one idle lock, and says so")
        self._require_rising([token, self.claimant().hold().token], "T6: purge does not reset the counter")

    def test_a_break_mints_a_higher_token(self) -> None:
        """G10: an operator seals the guards with it against the old holder."""
        token = self.claimant().hold().token
        broken = self.break_lock()
        self._require_rising([token, broken.token, self.claimant().hold().token], "a break mints its own token")

    def test_tokens_rise_for_a_source_opened_again(self) -> None:
        """T6: a restart of the client does not reset the counter."""
        if not self.survives_reopening:
            return
        before = self.source()
        token = self.claimant("a").hold().token
        self.reopen()
        after = self.source()
        same = (before.source_id, before.history_id) == (after.source_id, after.history_id)
        require(same, "a source that is opened again has its source id and history id")
        other = self.claimant("a")
        require(isinstance(other.acquire(), ask.Busy), "a lease outlives the connection that got it")
        self.break_lock("a")
        self._require_rising([token, self.claimant("a").hold().token], "T6: opening again does not reset the counter")

    def test_inspection_shows_the_last_token_and_gives_none_away(self) -> None:
        """T5: Redisson's getToken() reads the counter, so a stale holder gets its successor's token."""
        stale = self.brief()
        stale.hold()
        self.let_expire()
        fresh = self.claimant()
        token = fresh.hold().token
        replies = (stale.acquire(), stale.poll(), self.ask(stale.request(may_wait=True)))
        for reply in replies:
            require(
                not isinstance(reply, ask.Granted), f"T5: a stale holder does not get another claim's token: {reply}"
            )
        require(stale.renew() is not None, "T5: the stale holder's lease is not confirmed")
        require(self.info().token == token, f"T5: inspection shows the last token issued, {token}")

    def test_an_unknown_lock_has_no_token(self) -> None:
        """T2: 0 is never a token."""
        info = self.info("never taken")
        require(info.token is None and not info.is_held, f"a lock that was never taken has no token: {info}")

    def test_a_grant_names_its_source_and_history(self) -> None:
        """G5: guards compare both, and a sequencer has to carry them."""
        grants = [self.claimant(lock).hold() for lock in ("a", "b")]
        info = self.source()
        for grant in grants:
            require(
                (grant.source_id, grant.history_id) == (info.source_id, info.history_id), "a grant is of its source"
            )
        sequencer = Sequencer(info.source_id, info.history_id, "a", grants[0].token, ask.one_way("a claim"))
        require(Sequencer.parse(str(sequencer)) == sequencer, "source id and history id fit into a sequencer")

    def test_tokens_follow_the_holders_under_contention(self) -> None:
        """T1: a token drawn after the grant is inverted by a pause (portalocker): it is the holder's while it holds."""
        seen: list[int] = []

        def hammer(number: int) -> SourceFlow[None]:
            for _ in range(BLOWS):
                attempt = Attempt("lock", f"hammer-{number}", self.long_ttl_ms)
                grant = yield from acquire(attempt, may_wait=True, timeout_ms=None)
                assert grant is not None, "without a timeout it waits"
                info = yield ask.Inspect("lock")
                require(info.token == grant.token, f"T1: the holder's token {grant.token} is the last, {info.token}")
                seen.append(grant.token)
                yield from release("lock", attempt.claim or "")

        self.runner.together(self.store, [hammer(number) for number in range(HAMMERS)])
        require(len(seen) == HAMMERS * BLOWS, "each blow was granted once")
        self._require_rising(seen, "T1: tokens rise in the order in which the lock was held")

    def test_raising_the_epoch_begins_above_every_token(self) -> None:
        """T7: the counter jumps to the next multiple of 2**40, the history id is new, and the old leases have ended."""
        if not self.has_epochs:
            return
        holder, waiter = self.claimant(), self.claimant()
        token = holder.hold().token
        waiter.queue()
        before = self.source()
        after = self.raise_epoch()
        require(after.last_token >= token and after.last_token % EPOCH_STRIDE == 0, f"T7: the counter jumps: {after}")
        require(after.epoch == before.epoch + 1 and after.history_id != before.history_id, "T7: a new history begins")
        require(after.source_id == before.source_id, "T7: the source stays itself")
        require(holder.renew() is not None, "T7: a lease of the old history is over")
        require(isinstance(holder.acquire(), ask.ClaimEnded), "T7, H4: nor is its claim granted in the new one")
        require(isinstance(waiter.poll(), ask.ClaimEnded), "T7: nor has a waiter of the old history a place")
        self._require_rising([after.last_token, self.claimant().hold().token], "T7: tokens go on above the jump")

    def test_raising_the_epoch_is_compared_and_swapped(self) -> None:
        """T7: of two concurrent operators only one raises the epoch; a repeated request changes nothing."""
        if not self.has_epochs:
            return
        before = self.source()
        self.raise_epoch()
        require(self.ask(ask.RaiseEpoch(before.history_id, "too late")) is None, "T7: a stale history is not raised")
        require(self.source().epoch == before.epoch + 1, "T7: the epoch was raised once")

    def test_reserving_a_block_twice_spends_nothing(self) -> None:
        """T1: a client repeats a reservation whose reply was lost."""
        token = self.claimant("a").hold().token
        before = dataclasses.replace(self.source(), reserved_token=0)
        for _ in range(3):
            self.ask(ask.ReserveBlock())
        info = self.source()
        last_token = before.last_token if self.counts_alone else info.last_token
        after = dataclasses.replace(before, last_token=last_token)
        require(dataclasses.replace(info, reserved_token=0) == after, "T1: reserving issues no token")
        require(info.reserved_token >= info.last_token, f"T1: no token lies above what is reserved: {info}")
        self._require_rising([token, self.claimant("b").hold().token], "T1: tokens go on where they were")

    def _require_rising(self, tokens: list[int], rule: str) -> None:
        require(all(low < high for low, high in pairwise(tokens)), f"{rule}: {tokens}")
