"""Checks that purged marks leave a floor, which refuses what they refused (G15)."""

from contextlib import closing

from fencelock.errors import GuardError, StaleTokenError, UnsupportedError
from fencelock.model import Mark, Sequencer
from fencelock.protocol import AuditEntry, Begin, Commit, FindOldMarks, Floor, PurgeMarks, SetFloor, ask
from fencelock.protocol.mark_requests import floor_reason
from fencelock.testing.conformance.guard_rig import GuardRig
from fencelock.testing.conformance.rig import refusal, require

A_DAY_MS = 86_400_000


class PurgeChecks(GuardRig):
    """Checks of marks that an operator purges."""

    def test_a_purged_mark_leaves_a_floor(self) -> None:
        """G15: whatever the mark refused is refused, and a later token seals."""
        if not self.capabilities.spans_resources:
            return
        self._seal(5)
        require(self.purge(self._old()) == 1, "G15: the reply is how many marks went")
        require(self.mark() == Mark("r", "lock"), f"G15: a purged mark is gone: {self.mark()}")
        require(self.seen().floors == (Floor(self.source_id, 5),), f"G15: the floor is shown: {self.seen().floors}")
        for token in (4, 5):
            with refusal(StaleTokenError, f"G15: token {token} is not above the floor"):
                self._seal(token)
        require(self.mark().token == 0, "G15: what was refused has left no mark")
        newer = self._seal(6)
        require(self.mark().digest == newer.digest, "G15: a token above the floor seals")

    def test_a_floor_is_for_every_resource_of_its_source(self) -> None:
        """G15: also for one that was never sealed, and for no other source."""
        if not self.capabilities.spans_resources:
            return
        self._seal(5)
        self.purge(self._old())
        with refusal(StaleTokenError, "G15: a resource without a mark is sealed above the floor only"):
            self._seal(5, "s")
        self.source_id = "another"
        self._seal(1)
        require(self.mark().token == 1, "G15: the floor of one source refuses no token of another one")

    def test_a_mark_that_has_no_source_yet_is_below_the_floor_too(self) -> None:
        """G15: an operator has made it, or `protect`: it was never sealed."""
        if not self.capabilities.spans_resources:
            return
        self._seal(5, "s")
        self.purge(self._old())
        self.do(self.guard().raise_to(3, reason="before the first seal"))
        with refusal(StaleTokenError, "G15: a mark without a source gets one by a token above its floor only"):
            self._seal(4)
        self._seal(6)

    def test_a_floor_never_falls_by_a_purge(self) -> None:
        """G15: the tokens that went before were higher."""
        if not self.capabilities.spans_resources:
            return
        for resource, token in (("r", 7), ("s", 5)):
            self._seal(token, resource)
        for mark in self._old():
            self.purge((mark,))
        require(self.seen().floors == (Floor(self.source_id, 7),), f"G15: it only rises: {self.seen().floors}")

    def test_a_mark_that_was_raised_since_is_not_purged(self) -> None:
        """G15: its new holder goes on, and there is no floor."""
        if not self.capabilities.spans_resources:
            return
        self._seal(5)
        old = self._old()
        self._seal(6)
        require(self.purge(old) == 0, "G15: only a mark that is still the same goes")
        require((self.mark().token, self.seen().floors) == (6, ()), "G15: a purge of nothing changes nothing")

    def test_a_purge_that_is_undone_changes_nothing(self) -> None:
        """G15: mark and floor change in one step, or not at all."""
        if not self.capabilities.spans_resources:
            return
        self._seal(5)
        with closing(self.make_store(self.url).connect()) as connection:
            connection.perform(Begin())
            connection.perform(PurgeMarks(self._old(), Floor(self.source_id, 5), self._entry("purge", 5, 5)))
            connection.rollback()
        require(
            (self.mark().token, self.seen().floors) == (5, ()), "G15: a purge that was rolled back changed something"
        )

    def test_marks_that_may_not_go_are_not_found(self) -> None:
        """G15: a young one, one that was moved, one of another source, one of a resource with a table."""
        if not self.capabilities.spans_resources:
            return
        self._seal(5)
        require(self._old(A_DAY_MS) == (), "G15: a mark that was just written is not old")
        self._seal(5, "moved")
        self.do(self.guard("moved").rebind("lock", source=self.source_at(9), reason="a check"))
        if self.enforces:
            self.do(self.guard("with a table").protect(self.tables[0]))
            self._seal(6, "with a table")
        names = [mark.resource for mark in self._old()]
        require(names == ["r"], f"G15: of these marks only r may go: {names}")
        ours, self.source_id = self.source_id, "another"
        require(self._old() == (), "G15: marks of another source are not asked for")
        self.source_id = ours
        kept = tuple(mark for name in ("moved", "with a table") if (mark := self.mark(name)).token)
        require(self.purge(kept) == 0, "G15: a mark that may not go stays, whoever asks")

    def test_old_marks_are_found_page_by_page(self) -> None:
        """G15: in the order of the bytes of their resources."""
        if not self.capabilities.spans_resources:
            return
        names = ["a", "b", "z", "\N{LATIN SMALL LETTER A WITH DIAERESIS}", "\N{GRINNING FACE}"]
        for name in names:
            self._seal(5, name)
        pages = [self._old(limit=2), self._old(limit=2, after="b"), self._old(limit=2, after=names[3])]
        found = [mark.resource for page in pages for mark in page]
        require(found == names, f"G15: the pages are {found}")

    def test_a_floor_is_set_with_an_audit_entry(self) -> None:
        """G15: lower or higher, if it is still the one that the operator saw."""
        if not self.capabilities.spans_resources:
            return
        self._seal(5)
        self.purge(self._old())
        self._set(5, 9)
        with refusal(StaleTokenError, "G15: a floor that was raised refuses"):
            self._seal(9)
        self._set(9, 3)
        self._seal(4)
        with refusal(GuardError, "G15: a floor that was changed meanwhile is not set"):
            self._set(9, 1)
        require(self.seen().floors == (Floor(self.source_id, 3),), f"G15: the floor is {self.seen().floors}")
        self._set(3, 0)
        require(self.seen().floors == (), "G15: 0 removes a floor")

    def test_a_store_of_lone_resources_keeps_no_floors(self) -> None:
        """G15: it could not raise a floor and delete a mark in one step, so it says that its marks stay."""
        if self.capabilities.spans_resources:
            return
        self._seal(5)
        raising = SetFloor(Floor(self.source_id, 5), self._entry("floor", 0, 5))
        with closing(self.make_store(self.url).connect()) as connection:
            for request in (FindOldMarks(self.source_id, 0), raising):
                with refusal(UnsupportedError, f"G15: {type(request).__name__} is refused where no floor can be kept"):
                    connection.perform(request)
        require((self.mark().token, self.seen().floors) == (5, ()), "G15: the mark stays, and there is no floor")

    # --- steps ------------------------------------------------------------------------------------------------------
    def _seal(self, token: int, resource: str = "r") -> Sequencer:
        sequencer = self.sequencer(token)
        self.seal(self.guard(resource), sequencer)
        return sequencer

    def _old(self, older_than_ms: int = 0, *, after: str = "", limit: int = 100) -> tuple[Mark, ...]:
        """Return what may be purged."""
        request = FindOldMarks(self.source_id, older_than_ms, after, limit)
        found: tuple[Mark, ...] = self.run(ask(request))
        return found

    def _set(self, before: int, token: int) -> None:
        with closing(self.make_store(self.url).connect()) as connection:
            connection.perform(Begin())
            connection.perform(SetFloor(Floor(self.source_id, token), self._entry("floor", before, token)))
            connection.perform(Commit())

    def _entry(self, action: str, before: int, after: int) -> AuditEntry:
        return AuditEntry(action, "", before, after, "the kit", floor_reason("a check", self.source_id))
