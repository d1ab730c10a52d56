"""Checks of a guard's marks: rules G1 to G5, G9 and G10."""

import dataclasses
import threading
import time

from fencelock import Guard
from fencelock.errors import (
    ConfigError,
    FencelockError,
    GuardError,
    SealLostError,
    StaleTokenError,
    TokenCollisionError,
    WrongLockError,
)
from fencelock.model import PLAUSIBLE_GAIN
from fencelock.protocol import MAX_TOKEN
from fencelock.testing.conformance.guard_rig import LOCK, GuardRig
from fencelock.testing.conformance.rig import refusal, require
from fencelock.testing.runners import REQUEST_TIMEOUT_S, sync_guard

A_MOMENT_S = 0.2
"""How long a seal may try to overtake an open transaction; it must not succeed."""
BIG = 2**53
"""From this number on, a store that keeps numbers as floats confuses neighbouring integers."""


class _Stop(Exception):  # noqa: N818 - it is not an error: it only leaves a block.
    """Leaves a block without an error."""


class SealChecks(GuardRig):
    """Checks of which tenure a guard admits, from when on, and to which resource."""

    # --- G1 -----------------------------------------------------------------------------------------------------------
    def test_a_resource_that_was_never_sealed_has_mark_0(self) -> None:
        """G1: any token seals it."""
        require(self.mark().token == 0, f"G1: a resource that was never sealed has mark 0: {self.mark()}")
        self.write(self.guard(), self.sequencer(1), "first")
        require(self.value() == "first", "G1: any token seals it, and writes")

    def test_a_holder_may_write_again(self) -> None:
        """G1: token == mark is its own; a strict `>` refuses the second write of every holder."""
        guard, lease = self.guard(), self.sequencer(5)
        for value in ("one", "two", "three"):
            self.write(guard, lease, value)
            require(self.value() == value, f"G1: the holder's own write {value!r} is admitted")
            self.seal(guard, lease)
        require(self.mark().token == lease.token, "G1: the mark is the holder's token")

    def test_a_holder_may_write_through_another_guard(self) -> None:
        """G1: another process of the same tenure, with the sequencer, is the same holder."""
        lease = self.sequencer(5)
        self.write(self.guard(), lease, "parent")
        self.write(self.guard(), lease, "child")
        require(self.value() == "child", "G1: any process with the sequencer is the holder")

    def test_a_lower_token_is_refused_with_both_numbers(self) -> None:
        """G1: as soon as a newer holder has sealed, even without a write."""
        old, new = self.sequencer(5), self.sequencer(8)
        self.write(self.guard(), old, "old")
        self.seal(self.guard(), new)
        with refusal(StaleTokenError, "G1: a token below the mark is refused") as caught:
            self.write(self.guard(), old, "late")
        error = caught[0]
        require((error.token, error.mark, error.resource) == (5, 8, "r"), f"G1: the error has both numbers: {error}")
        require(self.value() == "old" and self.mark().token == new.token, "G1: a refusal changes nothing")
        with refusal(StaleTokenError, "G1: a token below the mark cannot seal"):
            self.seal(self.guard(), self.sequencer(7))

    def test_an_equal_token_of_another_claim_is_a_collision(self) -> None:
        """G1: the source issued one token twice, and the guard must report it."""
        self.write(self.guard(), self.sequencer(5), "first")
        with refusal(TokenCollisionError, "G1: an equal token with another claim is a collision"):
            self.write(self.guard(), self.sequencer(5), "second")
        require(self.value() == "first", "G1: and writes nothing")

    def test_an_equal_token_of_another_history_is_a_collision(self) -> None:
        """G1, T7: the same claim in another history is another tenure."""
        lease = self.sequencer(5)
        self.write(self.guard(), lease, "first")
        with refusal(TokenCollisionError, "G1: an equal token of another history is a collision"):
            self.write(self.guard(), dataclasses.replace(lease, history_id="another"), "second")

    def test_tokens_are_compared_exactly_up_to_the_last(self) -> None:
        """T2: 2**53 and its neighbour are different, and 2**63-1 is a token."""
        for low, high in ((BIG, BIG + 1), (2**62, 2**62 + 1), (MAX_TOKEN - 1, MAX_TOKEN)):
            self.do(self.guard().raise_to(low - 1, reason="a check of large tokens", implausible=True))
            old, new = self.sequencer(low), self.sequencer(high)
            self.write(self.guard(), old, "old")
            self.write(self.guard(), new, "new")
            require(self.mark().token == high, f"T2: the mark is exactly {high}, not {self.mark().token}")
            with refusal(StaleTokenError, f"T2: {low} is below {high}"):
                self.write(self.guard(), old, "late")

    # --- G2, G3, G4 ---------------------------------------------------------------------------------------------------
    def test_a_seal_is_committed_apart_from_the_users_work(self) -> None:
        """G2: the seal commits before the first read and survives a rollback of the block."""
        guard, lease = self.guard(), self.sequencer(5)
        with refusal(_Stop, "an exception leaves the block as it is"):
            self.write(guard, lease, "undone", then=_Stop())
        require(self.mark().token == lease.token, "G2: the seal is committed before the block begins")
        require(self.value() is None, "the block's write is rolled back")

    def test_a_seal_is_seen_by_others_before_the_first_read(self) -> None:
        """G2: from then on an old holder is refused, although the new holder has not written."""
        guard, old = self.guard(), self.sequencer(5)
        self.write(guard, old, "old")
        self.seal(self.guard(), self.sequencer(6))
        with refusal(StaleTokenError, "G2: the old holder is refused before the new one's first write"):
            self.write(guard, old, "late")

    def test_a_seal_outlives_the_client_that_made_it(self) -> None:
        """G4: the store keeps the mark with the data."""
        self.seal(self.guard(), self.sequencer(5))
        mark = self.mark()
        require((mark.token, mark.lock, mark.source_id) == (5, LOCK, self.source_id), f"G4: the mark is kept: {mark}")
        require(not mark.is_closed and mark.history_id == self.history_id, f"G4: with its history, and open: {mark}")

    def test_several_resources_are_sealed_together(self) -> None:
        """G2: all of them before any is read."""
        if not self.capabilities.spans_resources:
            with refusal(ConfigError, "a store that writes one resource in one step has no guard of two"):
                self.guard("r", "s")
            return
        lease = self.sequencer(5)
        self.seal(self.guard("r", "s"), lease)
        require([self.mark(name).token for name in ("r", "s")] == [5, 5], "G2: every resource of a guard is sealed")

    def test_of_several_resources_none_is_sealed_if_one_refuses(self) -> None:
        """G2: one transaction seals all of them."""
        if not self.capabilities.spans_resources:
            return
        self.seal(self.guard("s"), self.sequencer(8))
        with refusal(StaleTokenError, "G1: one of them refuses"):
            self.seal(self.guard("r", "s"), self.sequencer(5))
        require(self.mark("r").token == 0, "G2: then none of them is sealed")

    def test_a_guard_opened_after_another_was_read_is_refused(self) -> None:
        """G2: until then the old holder could write to the resource."""
        lease = self.sequencer(5)
        self.write(self.guard("r"), lease, "read and written")
        with refusal(GuardError, "G2: a seal after the tenure's first read comes too late"):
            self.seal(self.guard("s"), lease)
        require(self.mark("s").token == 0, "G2: the late seal is not made")
        self.seal(self.guard("s", independent=True), lease)
        require(self.mark("s").token == lease.token, "G2: an independent guard may seal late")

    def test_a_mark_is_checked_again_in_each_transaction(self) -> None:
        """G2, G3: a remembered seal does not permit a write."""
        guard, old = self.guard(), self.sequencer(5)
        self.write(guard, old, "old")
        self.write(self.guard(), self.sequencer(6), "new")
        for _ in range(2):
            with refusal(StaleTokenError, "G3: the mark is checked in the transaction that writes"):
                self.write(guard, old, "late")
        require(self.value() == "new", "G3: the refused block writes nothing")

    def test_a_seal_does_not_overtake_an_open_transaction(self) -> None:
        """G3: check and change are one transaction: either the seal waits, or the write fails."""
        self.write(self.guard(), self.sequencer(5, claim="old"), "old")
        sealed_s: list[float] = []

        def seal() -> None:
            try:
                self._sync_guard().seal(self.sequencer(6))
            except FencelockError:
                return  # It gave up waiting, which is as good.
            sealed_s.append(time.monotonic())

        sealing = threading.Thread(target=seal, daemon=True)
        commit_s = None
        try:
            with self._sync_guard().transaction(self.sequencer(5, claim="old")) as native:
                self.put(native, self.tables[0], "k", "late")
                sealing.start()
                sealing.join(A_MOMENT_S)
                before_commit_s = time.monotonic()
            commit_s = before_commit_s
        except FencelockError:
            pass  # The write failed, which is as good.
        sealing.join(REQUEST_TIMEOUT_S)
        overtaken = commit_s is not None and bool(sealed_s) and sealed_s[0] < commit_s
        require(not overtaken, "G3: a write was committed after a newer holder's seal had been")

    def _sync_guard(self) -> Guard:
        return sync_guard(self.make_store(self.url), ("r",), LOCK)

    # --- G5 -----------------------------------------------------------------------------------------------------------
    def test_a_mark_is_of_the_whole_resource(self) -> None:
        """G5: with a mark for each row, an old holder writes to the rows that the new one has not touched."""
        old, new = self.sequencer(5), self.sequencer(6)
        self.write(self.guard(), old, "old", key="a")
        self.write(self.guard(), new, "new", key="b")
        for key in ("a", "b", "c"):
            for table in self.tables:
                with refusal(StaleTokenError, "G5: the mark is of the resource, not of a row or a table"):
                    self.write(self.guard(), old, "late", key=key, table=table)

    def test_resources_have_marks_of_their_own(self) -> None:
        """G5: sealing one resource does not affect another."""
        self.seal(self.guard("r"), self.sequencer(8))
        self.seal(self.guard("s"), self.sequencer(5))
        require((self.mark("r").token, self.mark("s").token) == (8, 5), "G5: each resource has its own mark")

    def test_resource_names_are_kept_apart(self) -> None:
        """G5: case, blanks, escapes and normal forms make no two resources one."""
        names = ("r", "R", " r", "r ", "r%", "r_", "r/", "%72", "\u00e9", "e\u0301", "'", '"', "x" * 512)
        for token, name in enumerate(names, start=1):
            self.seal(self.guard(name), self.sequencer(token))
        found = [self.mark(name).token for name in names]
        require(found == list(range(1, len(names) + 1)), f"G5: each name has its own mark: {found}")

    def test_another_locks_lease_is_refused(self) -> None:
        """G5: a resource is bound to its lock."""
        with refusal(WrongLockError, "G5: a lease on another lock than the guard's is refused"):
            self.seal(self.guard(), self.sequencer(5, lock="another"))
        holder = self.sequencer(5)
        self.seal(self.guard(), holder)
        with refusal(WrongLockError, "G5: so is a guard that was opened for another lock than the resource's"):
            self.seal(self.guard(lock="another"), self.sequencer(6, lock="another"))
        require(self.mark().token == holder.token, "G5: neither changes the mark")

    def test_another_sources_lease_is_refused(self) -> None:
        """G5: its tokens cannot be compared."""
        self.seal(self.guard(), self.sequencer(5))
        with refusal(WrongLockError, "G5: a lease of another source is refused"):
            self.seal(self.guard(), dataclasses.replace(self.sequencer(6), source_id="another"))

    def test_rebinding_moves_a_resource_to_another_lock(self) -> None:
        """G5: if the new source's counter is above the mark."""
        self.seal(self.guard(), self.sequencer(5))
        guard = self.guard()
        with refusal(GuardError, "G5: a source below the mark cannot take the resource over"):
            self.do(guard.rebind("another", source=self.source_at(4, source_id="other"), reason="a check"))
        self.do(guard.rebind("another", source=self.source_at(9, source_id="other"), reason="a check"))
        moved = dataclasses.replace(self.sequencer(10, lock="another"), source_id="other")
        self.write(self.guard(lock="another"), moved, "moved")
        with refusal(WrongLockError, "G5: then the first lock's holder is refused"):
            self.write(self.guard(), self.sequencer(11), "late")

    # --- G9, G10 ------------------------------------------------------------------------------------------------------
    def test_a_seal_that_is_gone_is_not_made_again(self) -> None:
        """G9: the resource went back in time, so earlier reads from it are invalid."""
        guard, lease = self.guard(), self.sequencer(5)
        self.write(guard, lease, "read")
        self.do(guard.lower(3, reason="as a restore does"))
        for _ in range(2):
            with refusal(SealLostError, "G9: a tenure seals once; a mark below its token afterwards is a lost seal"):
                self.write(guard, lease, "late")
        require(self.mark().token < lease.token and self.value() == "read", "G9: a lost seal raises and writes nothing")

    def test_raising_a_mark_to_a_source_refuses_what_it_had_issued(self) -> None:
        """G9: an operator raises the mark after a restore; a lease with exactly that token is refused as well."""
        guard, lease = self.guard(), self.sequencer(5)
        self.write(guard, lease, "old")
        self.do(guard.raise_to(self.source_at(8), reason="a restore"))
        for token in (5, 8):
            with refusal(StaleTokenError, f"G9: token {token} was issued before the mark was raised to 8"):
                self.write(self.guard(), self.sequencer(token), "late")
        self.write(self.guard(), self.sequencer(9), "new")
        require(self.value() == "new", "G9: the next one is admitted")

    def test_a_closed_mark_refuses_its_own_holder(self) -> None:
        """G10: a late thread, or a child process with the sequencer, cannot write after close."""
        guard, lease = self.guard(), self.sequencer(5)
        self.write(guard, lease, "mine")
        for _ in range(2):
            self.close(guard, lease)
            require(self.mark().is_closed and self.mark().token == lease.token, "G10: closing keeps the token")
        for late in (guard, self.guard()):
            with refusal(StaleTokenError, "G10: after close the leaver's own token is stale"):
                self.write(late, lease, "late")
        self.write(self.guard(), self.sequencer(6), "next")
        require(self.value() == "next" and not self.mark().is_closed, "G10: the next holder opens it by its seal")

    def test_closing_before_sealing_refuses_the_token_too(self) -> None:
        """G10: a holder may close without having written."""
        lease = self.sequencer(5)
        self.close(self.guard(), lease)
        with refusal(StaleTokenError, "G10: a token that was closed unused is stale"):
            self.write(self.guard(), lease, "late")

    def test_a_close_that_is_gone_is_not_undone(self) -> None:
        """G9, G10: a closed tenure stays closed after the resource goes back in time."""
        guard, lease = self.guard(), self.sequencer(5)
        self.close(guard, lease)
        self.do(guard.lower(3, reason="as a restore does"))
        with refusal(SealLostError, "G9: a mark that was closed, and is lower now, was lost"):
            self.write(guard, lease, "late")

    def test_closing_does_not_disturb_a_newer_holder(self) -> None:
        """G10: an overtaken holder may close late."""
        old, new = self.sequencer(5), self.sequencer(6)
        self.seal(self.guard(), old)
        self.seal(self.guard(), new)
        self.close(self.guard(), old)
        self.write(self.guard(), new, "new")
        require(self.value() == "new", "G10: a late close leaves the newer holder's mark alone")

    def test_a_broken_lease_is_outranked(self) -> None:
        """G10: a break mints a token and seals the guard with it, so that no lease owns the mark."""
        guard, lease = self.guard(), self.sequencer(5)
        self.write(guard, lease, "old")
        minted = self.sequencer(6)
        self.do(self.guard().outrank(minted, reason="it hangs"))
        for late in (lease, minted):
            with refusal(StaleTokenError, "G10: neither the broken lease nor the break's own token may write"):
                self.write(guard, late, "late")
        self.write(self.guard(), self.sequencer(7), "next")

    def test_outranking_a_holder_of_the_same_token_is_a_collision(self) -> None:
        """G1, G10: a source that went back mints a holder's token again; the guard must report the collision."""
        guard, lease = self.guard(), self.sequencer(5)
        self.write(guard, lease, "old")
        with refusal(TokenCollisionError, "G1: a break's token that a holder has too is a collision"):
            self.do(guard.outrank(self.sequencer(5), reason="it hangs"))
        self.write(guard, lease, "still mine")
        require(self.value() == "still mine", "G1: the refused break changes nothing")

    def test_a_mark_is_lowered_by_an_operator_only(self) -> None:
        """G8: the remedy for a poisoned mark."""
        poison = PLAUSIBLE_GAIN // 2
        self.seal(self.guard(), self.sequencer(poison))
        guard = self.guard()
        with refusal(GuardError, "G8: lowering goes down"):
            self.do(guard.lower(poison, reason="a check"))
        sane = 4
        self.do(guard.lower(sane, reason="the mark was poisoned"))
        require(self.mark().token == sane, f"G8: an operator can lower a mark: {self.mark()}")
        self.write(self.guard(), self.sequencer(sane + 1), "again")
