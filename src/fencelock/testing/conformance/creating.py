"""Checks of a store whose marks only `protect` creates: a mark that is missing admits nobody (G9)."""

from fencelock.errors import GuardError, SealLostError, StaleTokenError, WrongLockError
from fencelock.model import Mark
from fencelock.protocol import InspectResources, ask
from fencelock.testing.conformance.guard_rig import LOCK, GuardRig
from fencelock.testing.conformance.rig import refusal, require

NEW = "new"
"""A resource that the rig has not protected."""
REMEDY = f"--resource {NEW} --lock {LOCK}"
LAST = 8
"""The last token of the source when a lost mark is created again."""


class CreationChecks(GuardRig):
    """Checks for stores whose capabilities have `first_seal_creates=False`; the others pass them unasked."""

    def test_a_resource_without_a_mark_refuses_every_lease(self) -> None:
        """G9: whatever the lease asks, and the error names the command that creates the mark."""
        if self.capabilities.first_seal_creates:
            return
        guard, lease = self.unmarked_guard(NEW), self.sequencer(5)
        for refused in (
            lambda: self.seal(guard, lease),
            lambda: self.write(guard, lease, "early"),
            lambda: self.write(guard, lease, "early", once="a key"),
            lambda: self.close(guard, lease),
            lambda: self.do(guard.outrank(lease, reason="a check")),
            lambda: self.do(guard.rebind("another", source=self.source_at(9), reason="a check")),
        ):
            with refusal(GuardError, "G9: a resource without a mark refuses every token") as caught:
                refused()
            require(REMEDY in str(caught[0]), f"G9: the error names the remedy: {caught[0]}")
            require(not isinstance(caught[0], SealLostError), f"G9: this tenure has sealed nothing: {caught[0]!r}")
        require(self._mark_of(NEW) is None and self.value() is None, "G9: what was refused has written nothing")

    def test_protecting_creates_the_mark(self) -> None:
        """G5, G9: bound to its lock, with token 0; a second time it changes nothing."""
        if self.capabilities.first_seal_creates:
            return
        guard = self.unmarked_guard(NEW)
        self.do(guard.protect())
        require(self._mark_of(NEW) == Mark(NEW, LOCK), f"G5: the mark is bound to its lock: {self._mark_of(NEW)}")
        with refusal(WrongLockError, "G5: another lock's guard does not protect it"):
            self.do(self.unmarked_guard(NEW, lock="another").protect())
        lease = self.sequencer(5)
        self.write(guard, lease, "mine")
        self.do(guard.protect())
        self.do(guard.protect(source=self.source_at(LAST)))
        self.write(guard, lease, "still mine")
        require(self.value() == "still mine", "G9: protecting again leaves the mark alone")

    def test_a_lost_mark_admits_nobody(self) -> None:
        """G9: neither its holder, who is told of the loss, nor a stale lease, nor a newer one."""
        if self.capabilities.first_seal_creates:
            return
        guard, lease = self.guard(), self.sequencer(5)
        self.write(guard, lease, "mine")
        self.lose_mark("r")
        with refusal(SealLostError, "G9: a tenure is told that its seal is gone"):
            self.write(guard, lease, "late")
        for token in (4, 6):
            with refusal(GuardError, "G9: a lost mark admits nobody"):
                self.write(self.guard(), self.sequencer(token), "late")
        with refusal(SealLostError, "G9: nor does it admit the close of its holder"):
            self.close(guard, lease)
        require(self._mark_of("r") is None and self.value() == "mine", "G9: nothing was written, and no mark made")

    def test_a_lost_mark_is_created_again_above_its_source(self) -> None:
        """G9: so that every lease until then is refused."""
        if self.capabilities.first_seal_creates:
            return
        self.write(self.guard(), self.sequencer(5), "old")
        for create in ("protect", "raise_to"):
            self.lose_mark("r")
            if create == "protect":
                self.do(self.guard().protect(source=self.source_at(LAST)))
            else:
                self.do(self.guard().raise_to(self.source_at(LAST), reason="a check"))
            require(self.mark().token == LAST, f"G9: the mark is its source's last token: {self.mark()}")
            for token in (5, LAST):
                with refusal(StaleTokenError, f"G9: token {token} was issued before the mark was lost"):
                    self.write(self.guard(), self.sequencer(token), "late")
        self.write(self.guard(), self.sequencer(LAST + 1), "new")
        require(self.value() == "new", "G9: the next one is admitted")

    def _mark_of(self, resource: str) -> Mark | None:
        marks: tuple[Mark, ...] = self.run(ask(InspectResources(resource))).marks
        return marks[0] if marks else None
