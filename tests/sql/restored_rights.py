"""What a restored backup brings back: floors, which stay, and rights and keys, which the documented steps take away
again.
"""

import pytest

import fencelock
from fencelock import Sequencer, Source
from fencelock.protocol.guard_requests import Floor, Right
from fencelock.verifier import sign
from tests.sql.dialect import install, run
from tests.sql.guarded import Guarded
from tests.support.guards import LOCK, RESOURCE, HandmadeLease


class RestoredRights:
    """A role with a right and a key that was stolen: both are taken away after the backup, and are back after it."""

    def __init__(self, guarded: Guarded, role: str) -> None:
        self.guarded = guarded
        self.role = role
        self.guard = guarded.guard()
        guarded.guard("order:1").seal(HandmadeLease(3))
        fencelock.set_floor(guarded.database.url(), "source", 7, reason="above a mark that is there")
        with fencelock.connect(install(guarded.database.url())) as source:
            self.key = source.add_key()
            self.guard.grant(role)
            self._require(source)

    def _require(self, source: Source) -> None:
        self.guard.install_keys(source)
        self.guard.require_signatures(reason="a test")

    def take_away(self) -> None:
        """Do what an operator does who learns of the theft, after the backup."""
        with fencelock.connect(self.guarded.database.url()) as source:
            self._take_away(source)

    def _take_away(self, source: Source) -> None:
        self.guard.revoke(self.role, reason="a thief")
        source.retire_key(self.key.key_id, force=True)
        source.add_key()
        self._require(source)

    def check(self) -> None:
        """Assert that the restore has brought both back, and that the documented steps take them away."""
        url = self.guarded.database.url()
        self.guard = self.guarded.guard()
        with fencelock.connect(url) as source:
            source.raise_epoch(reason="restored")
            restored = fencelock.inspect_resources(url)
            assert (restored.marks[0].token, restored.floors) == (3, (Floor("source", 7),))
            assert fencelock.inspect_resources(url).rights == (Right(RESOURCE, self.role),)
            known = source.keys()
            assert (known.signing, [key.retired_s for key in known.keys]) == (self.key.key_id, [None])
            info = source.describe()
            stolen = sign(Sequencer(info.source_id, info.history_id, LOCK, info.last_token + 2**40, "0" * 32), self.key)
            self._seal(stolen, user=self.role)
            self.guard.unpoison(self.role, source=source, reason="a thief")
            self._take_away(source)
            with source.lock(LOCK) as lease:
                self.guard.seal(lease)
            for login, code in (({"user": self.role}, "FL014"), ({}, "FL013")):
                with pytest.raises(self.guarded.sql.client_error) as caught:
                    self._seal(stolen, **login)
                assert self.guarded.sql.code_of(caught.value) == code

    def _seal(self, sequencer: Sequencer, **login: str) -> None:
        """Seal as a client does that knows no library."""
        with self.guarded.database.connect(**login) as native:
            run(native, f"{self.guarded.sql.call}seal(%s, 'reports')", str(sequencer))
