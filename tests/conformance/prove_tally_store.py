"""Run the public kits over the store of `tally://`, and print the checks that failed as JSON; arguments name kits."""

import json
import sys

import fencelock
from fencelock.testing import (
    AsyncGuardConformance,
    AsyncSourceConformance,
    GuardConformance,
    SourceConformance,
    failures,
)


class FreshTally:
    """Each check gets a fresh URL."""

    def make_url(self):
        return f"tally://{self.folder.name}"


class TallyWriter(FreshTally):
    """How clients write to the guarded resource, with and without the guard."""

    def put(self, native, table, key, value):
        native.put(table, key, value)

    def put_alone(self, table, key, value):
        self._client().put_alone(table, key, value)

    def get(self, table, key):
        return self._client().get(table, key)

    def _client(self):
        return self.make_store(self.url).connect().native


class TallySourceKit(FreshTally, SourceConformance):
    pass


class AsyncTallySourceKit(FreshTally, AsyncSourceConformance):
    pass


class TallyGuardKit(TallyWriter, GuardConformance):
    pass


class AsyncTallyGuardKit(TallyWriter, AsyncGuardConformance):
    pass


def use_by_url() -> None:
    """Take a lock and write under it, through the public API alone."""
    with fencelock.connect("tally://used") as source, source.lock("job", ttl=10.0) as lease:
        guard = fencelock.guard("tally://used", resource="r", lock="job")
        with guard.transaction(lease) as native:
            native.put("red", "k", "v")


KITS = (TallySourceKit, AsyncTallySourceKit, TallyGuardKit, AsyncTallyGuardKit)


def main(names: list[str]) -> None:
    use_by_url()
    kits = [kit for kit in KITS if not names or kit.__name__ in names]
    found = {f"{kit.__name__}.{name}": str(error) for kit in kits for name, error in failures(kit).items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
