"""Checks that the store itself refuses writes that present no token: rule G6."""

from typing import Any

from fencelock.errors import GuardError, StaleTokenError, UnfencedWriteError
from fencelock.testing.conformance.guard_rig import GuardRig
from fencelock.testing.conformance.rig import refusal, require


class EnforcementChecks(GuardRig):
    """A client that does not use the guard cannot write to a store that enforces."""

    def test_an_unfenced_write_is_refused(self) -> None:
        """G6: the store refuses any client, before and after the first seal of the resource."""
        if not self.enforces:
            return
        guard = self.protect()
        for value in ("before the first seal", "after it"):
            with refusal(Exception, f"G6: the store refuses a write that presents no token, {value}"):
                self.put_alone(self.tables[0], "k", value)
            require(self.value() is None, "G6: a refused write changes nothing")
            self.seal(guard, self.sequencer(5, claim="holder"))
        self.write(guard, self.sequencer(5, claim="holder"), "fenced")
        require(self.value() == "fenced", "G6: the holder writes")

    def test_a_token_is_presented_for_one_transaction(self) -> None:
        """G6: the next client on the same server has presented no token."""
        if not self.enforces:
            return
        guard, lease = self.protect(), self.sequencer(5)
        self.write(guard, lease, "fenced")
        with refusal(Exception, "G6: a token presented in one transaction does not admit the next transaction"):
            self.put_alone(self.tables[0], "k", "unfenced")
        require(self.value() == "fenced", "G6: the refused write leaves the value unchanged")

    def test_a_token_is_presented_for_its_own_resource(self) -> None:
        """G5, G6: a guarded block for one resource cannot write to another resource's tables."""
        if not self.enforces:
            return
        guard = self.protect()
        self.do(self.guard("s").protect(self.tables[1]))
        with refusal(UnfencedWriteError, "G6: a block can write only to the tables of its own resource"):
            self.write(guard, self.sequencer(5), "strange", table=self.tables[1])
        require(self.value(table=self.tables[1]) is None, "G6: a refused block writes nothing")

    def test_a_stale_holder_is_refused_where_the_store_enforces(self) -> None:
        """G1, G6: protecting a table does not change which token is admitted."""
        if not self.enforces:
            return
        guard, old = self.protect(), self.sequencer(5)
        self.write(guard, old, "old")
        self.write(guard, self.sequencer(6), "new")
        with refusal(StaleTokenError, "G1: an old holder is refused"):
            self.write(guard, old, "late")
        require(self.value() == "new", "G1: the refused holder writes nothing")

    def test_other_tables_are_free(self) -> None:
        """G6: the store does not restrict a table that is not protected."""
        if not self.enforces:
            return
        self.protect()
        self.put_alone(self.tables[1], "k", "free")
        require(self.value(table=self.tables[1]) == "free", "G6: a table that is not protected accepts any write")

    def test_unprotecting_lets_anybody_write_again(self) -> None:
        """G6: unprotecting a table keeps the mark."""
        if not self.enforces:
            return
        guard = self.protect()
        lease = self.sequencer(5)
        self.seal(guard, lease)
        self.do(guard.unprotect(reason="a check"))
        self.put_alone(self.tables[0], "k", "free")
        require(self.value() == "free", "G6: an unprotected table accepts any write")
        require(self.mark().token == lease.token, "G6: the mark stays")

    def test_a_table_belongs_to_one_resource(self) -> None:
        """G5: with two marks on one table, neither mark would fully protect it."""
        if not self.enforces:
            return
        self.protect()
        with refusal(GuardError, "G5: a second resource cannot protect a table that belongs to the first"):
            self.do(self.guard("s").protect(self.tables[0]))
        require(
            [one.resource for one in self.seen().protections] == ["r"],
            "G5: the table still belongs to the first resource",
        )

    def test_observing_counts_and_lets_pass(self) -> None:
        """G6: observe mode counts and admits both unfenced writes and stale holders."""
        if not (self.observes and self.enforces):
            return
        guard, old = self.protect(mode="observe"), self.sequencer(5)
        self.put_alone(self.tables[0], "k", "unfenced")
        require(self.value() == "unfenced", "G6: observe mode admits an unfenced write")
        self.write(guard, old, "fenced")
        before = self._observed()
        require(before > 0, "G6: observe mode counts an unfenced write")
        self.seal(guard, self.sequencer(6))
        self.write(guard, old, "late")
        require(self.value() == "late", "G6: observe mode admits a stale holder")
        require(self._observed() > before, "G6: observe mode counts a stale holder")

    def test_a_fenced_write_is_not_counted(self) -> None:
        """G6: observe mode counts only the writes that enforce mode would refuse."""
        if not (self.observes and self.enforces):
            return
        self.write(self.protect(mode="observe"), self.sequencer(5), "fenced")
        require(self._observed() == 0, f"G6: observe mode does not count a fenced write: {self.seen().observations}")

    def test_going_over_to_enforcing_raises_the_mark(self) -> None:
        """G6: a writer that was only observed cannot continue with a token that was never sealed."""
        if not (self.observes and self.enforces):
            return
        old = self.sequencer(5)
        self.write(self.protect(mode="observe"), old, "observed")
        with refusal(GuardError, "G6: the switch needs the source to know which tokens it has issued"):
            self.protect()
        source = self.source_at(7)
        guard = self.protect(source=source)
        require(
            self.mark().token == source.last_token, f"G6: the switch raises the mark to the last token: {self.mark()}"
        )
        for late in (old, self.sequencer(source.last_token)):
            with refusal(StaleTokenError, "G6: an earlier holder must acquire the lock again"):
                self.write(guard, late, "late")
        self.write(guard, self.sequencer(source.last_token + 1), "enforced")
        with refusal(Exception, "G6: the store refuses unfenced writes after the switch"):
            self.put_alone(self.tables[0], "k", "unfenced")
        require(self.value() == "enforced", "G6: the refused write changes nothing")

    def test_protecting_again_changes_nothing(self) -> None:
        """G6: a deployment may protect its tables again at each start."""
        if not self.enforces:
            return
        lease = self.sequencer(5)
        self.write(self.protect(), lease, "one")
        self.write(self.protect(), lease, "two")
        require(self.value() == "two" and self.mark().token == lease.token, "G6: protecting is idempotent")

    def _observed(self) -> int:
        observations: Any = self.seen().observations
        return sum(one.times for one in observations)
