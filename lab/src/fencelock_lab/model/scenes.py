"""The small worlds that the explorer searches, and the scene that shows why each rule is needed.

Promise: with all rules on, no state of a scene in SCENES has an anomaly that the scene excludes; with one rule off, the
explorer finds each of the rule's anomalies in its scene. LIMITS are scenes in which even the whole protocol fails: they
show what it does not promise.
"""

from typing import NamedTuple

from fencelock_lab.model.rules import Anomaly
from fencelock_lab.model.world import Faults, Scene

_ALWAYS = (
    Anomaly.LOST,
    Anomaly.UNDONE,
    Anomaly.STALE,
    Anomaly.MIXED,
    Anomaly.INVERTED,
    Anomaly.TOKEN_AGAIN,
    Anomaly.GRANTED_AGAIN,
    Anomaly.FOREIGN_RELEASE,
)
_LEAVING = (*_ALWAYS, Anomaly.AFTER_LEAVING)
_UNNOTICED_AT_SOURCE = (Anomaly.LOST, Anomaly.UNDONE, Anomaly.STALE, Anomaly.TWO_CLAIMS)
_UNNOTICED_AT_RESOURCE = (Anomaly.LOST, Anomaly.UNDONE, Anomaly.TOKEN_AGAIN)

SCENES = {
    "work": Scene(
        "each client has two tenures, and writes twice in each",
        (*_ALWAYS, Anomaly.OWN_REFUSED),
        tenures=2,
        writes=2,
    ),
    "crowd": Scene(
        "a message is delivered twice",
        (*_ALWAYS, Anomaly.OWN_REFUSED),
        clients=3,
        faults=Faults(duplicates=1),
    ),
    "two resources": Scene("two resources under one lock", _ALWAYS, resources=("stock", "orders")),
    "leaving": Scene(
        "clients give up, close and release; a message is delivered twice",
        _LEAVING,
        leaves=True,
        faults=Faults(duplicates=1),
    ),
    "breaking": Scene(
        "an operator breaks a lease; two resources",
        _LEAVING,
        resources=("stock", "orders"),
        faults=Faults(breaks=1),
    ),
    "switch": Scene(
        "the resource is observed at first, and a script without a token writes to it",
        _ALWAYS,
        is_observed=True,
        faults=Faults(switches=1, scripts=1),
    ),
    "power cut": Scene(
        "the resource loses what was not flushed",
        _ALWAYS,
        tenures=2,
        faults=Faults(resource_cuts=1),
    ),
    "restore": Scene(
        "the resource is restored from a backup",
        _ALWAYS,
        writes=2,
        faults=Faults(backups=1, resource_restores=1),
    ),
    "restore of one": Scene(
        "one of two resources is restored",
        (Anomaly.LOST, Anomaly.UNDONE, Anomaly.STALE, Anomaly.MIXED),
        resources=("stock", "orders"),
        faults=Faults(resource_restores=1),
    ),
    "slip": Scene(
        "the resource goes back in time, unnoticed",
        _UNNOTICED_AT_RESOURCE,
        faults=Faults(duplicates=1, backups=1, resource_slips=1),
    ),
    "source": Scene(
        "the source loses power, and is restored",
        _ALWAYS,
        clients=3,
        faults=Faults(source_cuts=1, source_restores=1),
    ),
    "source slip": Scene(
        "the source goes back in time, unnoticed",
        _UNNOTICED_AT_SOURCE,
        clients=3,
        faults=Faults(source_slips=1),
    ),
    "readers": Scene(
        "a late client reads its successor's mark; a service is shown a sequencer",
        (*_ALWAYS, Anomaly.STOLEN),
        faults=Faults(thefts=1, shown=1),
    ),
    "forgers": Scene(
        "tokens are made up, by a role without the right and by accident",
        (*_ALWAYS, Anomaly.POISONED),
        faults=Faults(outsiders=1, accidents=1),
    ),
    "signed": Scene(
        "a role with the right makes up a token, at a resource that requires signatures",
        (*_ALWAYS, Anomaly.POISONED),
        faults=Faults(insiders=1),
        is_signed=True,
    ),
    "storm": Scene(
        "all may happen at once: source and resource lose power and are restored",
        _ALWAYS,
        faults=Faults(duplicates=1, source_cuts=1, source_restores=1, resource_cuts=1, resource_restores=1),
    ),
    "storm, leaving": Scene(
        "clients leave, and the resource loses power and is restored",
        _LEAVING,
        leaves=True,
        faults=Faults(resource_cuts=1, resource_restores=1),
    ),
}


class Case(NamedTuple):
    """A rule that is off, a scene, and the anomaly that the explorer finds there. `rule` is empty for a limit."""

    rule: str
    scene: str
    anomaly: Anomaly


CASES = (
    Case("seal-first", "work", Anomaly.LOST),
    Case("seal-first", "work", Anomaly.STALE),
    Case("seal-committed", "work", Anomaly.LOST),
    Case("seal-all", "two resources", Anomaly.MIXED),
    Case("admit-equal", "work", Anomaly.OWN_REFUSED),
    Case("claim-in-mark", "source slip", Anomaly.TWO_CLAIMS),
    Case("claim-in-mark", "source slip", Anomaly.LOST),
    Case("check-with-write", "work", Anomaly.LOST),
    Case("durable-mark", "power cut", Anomaly.STALE),
    Case("raise-at-switch", "switch", Anomaly.LOST),
    Case("remembered-seal", "slip", Anomaly.LOST),
    Case("remembered-seal", "slip", Anomaly.UNDONE),
    Case("raise-after-restore", "restore", Anomaly.STALE),
    Case("raise-after-restore", "restore", Anomaly.UNDONE),
    Case("raise-all", "restore of one", Anomaly.MIXED),
    Case("close", "leaving", Anomaly.AFTER_LEAVING),
    Case("break-seals", "breaking", Anomaly.AFTER_LEAVING),
    Case("minted-with-grant", "work", Anomaly.INVERTED),
    Case("durable-bound", "source", Anomaly.TOKEN_AGAIN),
    Case("counter-kept", "leaving", Anomaly.TOKEN_AGAIN),
    Case("epoch-on-restore", "source", Anomaly.TOKEN_AGAIN),
    Case("claim-once", "leaving", Anomaly.GRANTED_AGAIN),
    Case("release-by-claim", "leaving", Anomaly.FOREIGN_RELEASE),
    Case("digest-in-mark", "readers", Anomaly.STOLEN),
    Case("claim-ends", "readers", Anomaly.FOREIGN_RELEASE),
    Case("rights", "forgers", Anomaly.POISONED),
    Case("ceiling", "forgers", Anomaly.POISONED),
    Case("signatures", "signed", Anomaly.POISONED),
)

LIMITS = {
    "own duplicate": Scene(
        "a write is delivered once more after the same tenure's next one",
        (Anomaly.LOST,),
        clients=1,
        writes=2,
        faults=Faults(duplicates=1),
    ),
    "slip inside a tenure": Scene(
        "the resource goes back, unnoticed, to a backup that has this tenure's seal",
        (Anomaly.UNDONE,),
        clients=1,
        writes=2,
        faults=Faults(backups=1, resource_slips=1),
    ),
    "slip of one of two": Scene(
        "one of two resources goes back, unnoticed, and the tenure writes to the other",
        (Anomaly.MIXED,),
        resources=("stock", "orders"),
        faults=Faults(resource_slips=1),
    ),
    "insider": Scene(
        "a role with the right makes up a token, at a resource that requires no signatures",
        (Anomaly.POISONED,),
        faults=Faults(insiders=1),
    ),
    "source slip": Scene(
        "the source goes back, unnoticed, so that no epoch is raised",
        (Anomaly.TOKEN_AGAIN,),
        faults=Faults(source_slips=1),
    ),
}
