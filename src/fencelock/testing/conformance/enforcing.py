"""Checks that the store itself refuses writes that present no token: rule G6."""

from typing import Any

from fencelock.errors import GuardError, StaleTokenError, UnfencedWriteError
from fencelock.testing.conformance.guard_rig import GuardRig
from fencelock.testing.conformance.rig import refusal, require


class EnforcementChecks(GuardRig):
    """A client that does not use the guard cannot write where the store enforces."""

    def test_an_unfenced_write_is_refused(self) -> None:
        """G6: from any client; before anybody has sealed the resource, and after."""
        if not self.enforces:
            return
        guard = self.protect()
        for value in ("before the first seal", "after it"):
            with refusal(Exception, f"G6: the store refuses a write that presents no token, {value}"):
                self.put_alone(self.tables[0], "k", value)
            require(self.value() is None, "G6: and it changes nothing")
            self.seal(guard, self.sequencer(5, claim="holder"))
        self.write(guard, self.sequencer(5, claim="holder"), "fenced")
        require(self.value() == "fenced", "G6: the holder writes")

    def test_a_token_is_presented_for_one_transaction(self) -> None:
        """G6: the next client on the same server presents nothing."""
        if not self.enforces:
            return
        guard, lease = self.protect(), self.sequencer(5)
        self.write(guard, lease, "fenced")
        with refusal(Exception, "G6: what was presented in one transaction admits nothing in the next"):
            self.put_alone(self.tables[0], "k", "unfenced")
        require(self.value() == "fenced", "G6: and the value stays")

    def test_a_token_is_presented_for_its_own_resource(self) -> None:
        """G5, G6: a guarded block for one resource writes to no other's tables."""
        if not self.enforces:
            return
        guard = self.protect()
        self.do(self.guard("s").protect(self.tables[1]))
        with refusal(UnfencedWriteError, "G6: a block writes to the tables of its own resource"):
            self.write(guard, self.sequencer(5), "strange", table=self.tables[1])
        require(self.value(table=self.tables[1]) is None, "G6: and nothing of it is written")

    def test_a_stale_holder_is_refused_where_the_store_enforces(self) -> None:
        """G1, G6: protecting a table changes nothing about who is admitted."""
        if not self.enforces:
            return
        guard, old = self.protect(), self.sequencer(5)
        self.write(guard, old, "old")
        self.write(guard, self.sequencer(6), "new")
        with refusal(StaleTokenError, "G1: an old holder is refused"):
            self.write(guard, old, "late")
        require(self.value() == "new", "G1: and writes nothing")

    def test_other_tables_are_free(self) -> None:
        """G6: what was not protected is nobody's business."""
        if not self.enforces:
            return
        self.protect()
        self.put_alone(self.tables[1], "k", "free")
        require(self.value(table=self.tables[1]) == "free", "G6: a table that is not protected takes any write")

    def test_unprotecting_lets_anybody_write_again(self) -> None:
        """G6: and leaves the mark."""
        if not self.enforces:
            return
        guard = self.protect()
        lease = self.sequencer(5)
        self.seal(guard, lease)
        self.do(guard.unprotect(reason="a check"))
        self.put_alone(self.tables[0], "k", "free")
        require(self.value() == "free", "G6: an unprotected table takes any write")
        require(self.mark().token == lease.token, "G6: the mark stays")

    def test_a_table_belongs_to_one_resource(self) -> None:
        """G5: two marks over one table would both be half a protection."""
        if not self.enforces:
            return
        self.protect()
        with refusal(GuardError, "G5: a table that belongs to a resource is not protected by another one"):
            self.do(self.guard("s").protect(self.tables[0]))
        require([one.resource for one in self.seen().protections] == ["r"], "G5: it stays where it was")

    def test_observing_counts_and_lets_pass(self) -> None:
        """G6: unfenced writes and stale holders alike."""
        if not self.observes:
            return
        guard, old = self.protect(mode="observe"), self.sequencer(5)
        self.put_alone(self.tables[0], "k", "unfenced")
        require(self.value() == "unfenced", "G6: observe mode lets an unfenced write pass")
        self.write(guard, old, "fenced")
        before = self._observed()
        require(before > 0, "G6: and counts it")
        self.seal(guard, self.sequencer(6))
        self.write(guard, old, "late")
        require(self.value() == "late", "G6: observe mode lets a stale holder pass")
        require(self._observed() > before, "G6: and counts it")

    def test_a_fenced_write_is_not_counted(self) -> None:
        """G6: observe mode shows what enforcing would refuse, and nothing else."""
        if not self.observes:
            return
        self.write(self.protect(mode="observe"), self.sequencer(5), "fenced")
        require(self._observed() == 0, f"G6: a fenced write is nothing to observe: {self.seen().observations}")

    def test_going_over_to_enforcing_raises_the_mark(self) -> None:
        """G6: writers that were only observed do not go on under a token that was never sealed."""
        if not (self.observes and self.enforces):
            return
        old = self.sequencer(5)
        self.write(self.protect(mode="observe"), old, "observed")
        with refusal(GuardError, "G6: the switch needs the source, to know which tokens were issued"):
            self.protect()
        source = self.source_at(7)
        guard = self.protect(source=source)
        require(
            self.mark().token == source.last_token, f"G6: the switch raises the mark over all of them: {self.mark()}"
        )
        for late in (old, self.sequencer(source.last_token)):
            with refusal(StaleTokenError, "G6: whoever held the lock before has to acquire it again"):
                self.write(guard, late, "late")
        self.write(guard, self.sequencer(source.last_token + 1), "enforced")
        with refusal(Exception, "G6: and unfenced writes are refused"):
            self.put_alone(self.tables[0], "k", "unfenced")
        require(self.value() == "enforced", "G6: from then on")

    def test_protecting_again_changes_nothing(self) -> None:
        """G6: a deployment that protects at each start is no switch."""
        if not self.enforces:
            return
        lease = self.sequencer(5)
        self.write(self.protect(), lease, "one")
        self.write(self.protect(), lease, "two")
        require(self.value() == "two" and self.mark().token == lease.token, "G6: protecting is idempotent")

    def _observed(self) -> int:
        observations: Any = self.seen().observations
        return sum(one.times for one in observations)
