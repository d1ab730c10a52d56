"""Checks that a source keeps different lock names apart."""

import hashlib

from fencelock import protocol as ask
from fencelock.protocol import MAX_LOCK_NAME_BYTES
from fencelock.testing.conformance.rig import require
from fencelock.testing.conformance.source_rig import SourceRig

NASTY_NAMES = (
    # Prefixes of one another, and what separates parts of a key.
    "a", "a/", "a/b", "a/b/c", "/a", "//a", "a//b", ".", "..", "../a", "a.", ".a", "a..b",
    # What a store may escape, and names that look escaped already.
    "a%", "%", "%%", "%2F", "%2f", "a%2Fb", "%61", "a_", "a-b", "a:b", "a*", "a?", "[a]", "\\", "a\\b",
    # Quoting and statements.
    "'", "''", '"', "`", "a'; DROP TABLE locks; --", "$1", ":name", "{a}", "a\tb", "a\nb", "a\r\nb", "\x01", "\x7f",
    # Blanks are significant, at both ends too.
    " ", "  ", " a", "a ", "a b", "\u00a0", "\u200b", "a\u200b",
    # Letters that fold, normalise or compare as equal.
    "A", "\u00e9", "e\u0301", "\u00df", "ss", "SS", "\u0130", "i", "I", "\u0131", "\u212a", "k", "K", "\ufb01", "fi",
    "\u01c5", "\u00c5", "\u212b", "A\u030a", "\uff41", "\u2160",
    # Outside the first plane, the reverse of UTF-16 order, a zero that is not U+0000, long names with different ends.
    "\U0001f512", "\U0001f512\ufe0f", "\uffff", "\U00010000", "0", "00", "0.0", "null", "None", "true",
    "x" * MAX_LOCK_NAME_BYTES, "x" * (MAX_LOCK_NAME_BYTES - 1), "x" * (MAX_LOCK_NAME_BYTES - 1) + "y",
    "\u00e9" * (MAX_LOCK_NAME_BYTES // 2), "\U0001f512" * (MAX_LOCK_NAME_BYTES // 4),
)  # fmt: skip
"""Names that stores have confused, refused or changed; all of them are valid lock names."""


class NameChecks(SourceRig):
    """The store preserves every name exactly."""

    def test_nasty_names_are_different_locks(self) -> None:
        """Case, blanks, escapes and normal forms do not make two names equal."""
        holders = [self.claimant(name) for name in NASTY_NAMES]
        tokens = [holder.hold().token for holder in holders]
        require(len(set(tokens)) == len(tokens), "each name has its own token")
        for holder, token in zip(holders, tokens, strict=True):
            info = self.info(holder.lock)
            found = (info.name, info.token, info.holder)
            require(
                found == (holder.lock, token, holder.holder),
                f"inspection of {holder.lock!r} returns its own lease: {info}",
            )

    def test_releasing_one_nasty_name_frees_no_other(self) -> None:
        """Release every second lock; the others stay held."""
        holders = [self.claimant(name) for name in NASTY_NAMES]
        for holder in holders:
            holder.hold()
        for holder in holders[::2]:
            holder.release()
        for number, holder in enumerate(holders):
            is_held = self.info(holder.lock).is_held
            require(is_held == bool(number % 2), f"the release of another name does not change {holder.lock!r}")

    def test_listing_gives_every_name_back(self) -> None:
        """Listing page by page returns each name once."""
        for name in NASTY_NAMES:
            self.claimant(name).hold()
        found: list[str] = []
        after = None
        while page := self.ask(ask.ListLocks(after)):
            found += [info.name for info in page]
            require(len(found) <= len(NASTY_NAMES), f"listing advances and does not repeat {found[-1]!r}")
            after = found[-1]
        require(
            sorted(found) == sorted(NASTY_NAMES), f"listing returns each name once: {set(NASTY_NAMES) ^ set(found)}"
        )

    def test_many_names_are_different_locks(self) -> None:
        """A 16-bit hash of the name makes two of a thousand collide (tooz on PostgreSQL)."""
        for number in range(self.many_names):
            name = hashlib.sha256(str(number).encode()).hexdigest()
            reply = self.claimant(name).acquire()
            require(isinstance(reply, ask.Granted), f"name {number} collides with an earlier one: {reply}")
