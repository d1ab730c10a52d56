"""Checks that a guard's store is what its capabilities declare."""

from fencelock.errors import UnsupportedError
from fencelock.testing.conformance.guard_rig import LOCK, GuardRig
from fencelock.testing.conformance.rig import refusal, require
from fencelock.testing.runners import async_guard, sync_guard


class DeclarationChecks(GuardRig):
    """The command, `doctor` and the API rely on what a store declares, and ask nothing else."""

    def test_a_store_is_what_it_declares(self) -> None:
        """Each capability that stands for methods has them, and a store without it lacks them."""
        can, store = self.capabilities, self.make_store(self.url)
        declared = {
            "policy": can.enforced_by == "policy",
            "caller_connection": can.keeps_open,
            "connect_async": can.speaks_asyncio,
            "async_caller_connection": can.speaks_asyncio and can.keeps_open,
        }
        found = {name: hasattr(store, name) for name in declared}
        require(found == declared, f"the capabilities {can} go with these methods: {declared}, not {found}")

    def test_what_a_server_must_keep_is_kept_here(self) -> None:
        """A store that proves its server before the first seal can prove the one under test, and changes nothing."""
        store = self.make_store(self.url)
        if hasattr(store, "prove"):
            store.prove()
        require(self.seen().marks == (), "a proof seals nothing")

    def test_a_careless_server_is_refused(self) -> None:
        """G3: one that ignores conditions cannot keep a mark, so nothing is sealed there."""
        store = self.make_careless_store()
        if store is None:
            return
        guard = (async_guard if self.is_async else sync_guard)(store, ("r",), LOCK)
        for _ in range(2):
            with refusal(UnsupportedError, "G3: a server that does not keep what the guard relies on is refused"):
                self.seal(guard, self.sequencer(5))
        with refusal(UnsupportedError, "G3: operators are refused there too"):
            self.do(guard.raise_to(self.source_at(5), reason="a check"))
        require(self.do(guard.mark()).token == 0, "G3: nothing was sealed at a careless server")
