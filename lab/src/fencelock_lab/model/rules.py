"""The rules of the protocol, each a switch, and the anomalies that they exist to prevent.

Promise: the codes (G1, T7, …) are those of docs/reference/rules.md. Each rule says in its
texts what the protocol does with it and without it.
"""

from enum import Enum
from typing import NamedTuple


class Rules(NamedTuple):
    """Which rules hold. The protocol as built has them all."""

    admit_equal: bool = True
    claim_in_mark: bool = True
    seal_first: bool = True
    seal_committed: bool = True
    seal_all: bool = True
    check_with_write: bool = True
    durable_mark: bool = True
    raise_at_switch: bool = True
    remembered_seal: bool = True
    raise_after_restore: bool = True
    raise_all: bool = True
    close: bool = True
    break_seals: bool = True
    minted_with_grant: bool = True
    durable_bound: bool = True
    counter_kept: bool = True
    epoch_on_restore: bool = True
    claim_once: bool = True
    release_by_claim: bool = True
    digest_in_mark: bool = True
    claim_ends: bool = True
    rights: bool = True
    ceiling: bool = True
    signatures: bool = True

    def without(self, name: str) -> "Rules":
        """Return these rules with one switched off; `name` as in RULES."""
        return self._replace(**{name.replace("-", "_"): False})


class Rule(NamedTuple):
    """One rule: its code, its text, and what the protocol does when the rule is off."""

    code: str
    text: str
    off: str


class Anomaly(Enum):
    """A result that the rules exclude."""

    LOST = "an accepted increment is lost"
    UNDONE = "a write is computed from what a restore has undone"
    STALE = "a write is accepted although a successor has read"
    MIXED = "a write is computed from another resource's past"
    TWO_CLAIMS = "two claims are admitted under one token"
    OWN_REFUSED = "the holder of the mark is refused"
    AFTER_LEAVING = "a write is accepted after its holder has left or was broken"
    INVERTED = "a tenure that is over gets a higher token than its successor"
    TOKEN_AGAIN = "a token is issued that is not above all before it"
    GRANTED_AGAIN = "a claim is granted after it has ended"
    FOREIGN_RELEASE = "a release ends another claim's lease"
    STOLEN = "a write is accepted in the name of another's lease"
    POISONED = "a holder is refused by a token that no source has issued"


RULES = {
    "admit-equal": Rule(
        "G1", "a token equal to the mark is admitted", "a write is admitted only if its token is above the mark"
    ),
    "claim-in-mark": Rule(
        "G1", "the mark names the claim that sealed it", "any claim with the mark's token counts as its holder"
    ),
    "seal-first": Rule(
        "G2", "the mark is raised before the tenure reads", "the mark is raised by the tenure's first write"
    ),
    "seal-committed": Rule(
        "G2",
        "the seal is a transaction of its own, committed before the one that reads begins",
        "the seal is a statement of the transaction that reads, and its snapshot may be older than the seal",
    ),
    "seal-all": Rule(
        "G2", "all resources are sealed before the first is read", "each resource is sealed just before it is read"
    ),
    "check-with-write": Rule(
        "G3", "token and mark are compared in the transaction that writes", "the write follows its check later"
    ),
    "durable-mark": Rule(
        "G4", "the seal's commit is flushed", "the seal reaches the disk with the next write, or never"
    ),
    "raise-at-switch": Rule(
        "G6",
        "the switch from observing to enforcing raises the mark to the last token issued",
        "the switch leaves the mark as it is",
    ),
    "remembered-seal": Rule(
        "G9",
        "a tenure remembers its seal, and never raises a mark twice",
        "a tenure raises a mark again if it finds the mark lower",
    ),
    "raise-after-restore": Rule(
        "G9",
        "after a restore the mark is raised to the last token issued, before any client writes",
        "the restored mark stays as it is",
    ),
    "raise-all": Rule(
        "G9",
        "after a restore the marks of all resources of the lock are raised, not only that of the restored resource",
        "only the restored resource's mark is raised",
    ),
    "close": Rule(
        "G10", "a leaving client closes the marks before the release", "a leaving client only releases the lock"
    ),
    "break-seals": Rule(
        "G10", "breaking a lease mints a token and seals with it", "breaking a lease only frees the lock"
    ),
    "minted-with-grant": Rule(
        "T1", "a token is minted in the step that decides the holder", "a holder draws its token after the grant"
    ),
    "durable-bound": Rule("T1", "no token is issued above a bound that is on the disk", "the counter is not flushed"),
    "counter-kept": Rule("T6", "a release leaves the counter alone", "a release forgets the lock and its counter"),
    "epoch-on-restore": Rule(
        "T7", "a restored source restarts above all its tokens", "a restored source goes on counting"
    ),
    "claim-once": Rule(
        "H4", "a claim that has ended is never granted", "a delayed request to acquire is granted when it arrives"
    ),
    "release-by-claim": Rule(
        "H4", "a release ends the lease of its own claim only", "a release frees the lock, whichever claim holds it"
    ),
    "digest-in-mark": Rule(
        "G12",
        "a mark has a digest of what its lease presents",
        "a mark has what its lease presents, and anybody who reads the mark can present it",
    ),
    "claim-ends": Rule(
        "G12",
        "a lease is ended by its claim, which no sequencer shows",
        "a sequencer shows the claim, and anybody who is shown it can release the lease",
    ),
    "rights": Rule("G12", "a role seals only with a right", "every role that reaches the store may seal"),
    "ceiling": Rule(
        "G12", "a token that no source can have issued by now is refused", "any token above the mark raises it"
    ),
    "signatures": Rule(
        "G12", "a mark is raised only by what its source has signed", "a role with the right seals with any token"
    ),
}
