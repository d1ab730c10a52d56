"""Measure all contenders of one store in turns: alone, many at once, and handing over from one to the next."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from selectors import EVENT_READ, DefaultSelector

from benchmarks.measure import NS_PER_MS, NS_PER_US, Result, compare, quantile, summarise, turns
from benchmarks.peers.contender import Contender
from benchmarks.peers.player import Player, contenders, prepare
from benchmarks.stores import Site

ALONE = "acquire and release"
TAILS = {"p99": 0.99, "p99.9": 0.999}
RATE, FAIRNESS, LONGEST = "cycles a second", "fairness", "longest wait"
HAND_OFF = "hand-off"
BATCH = 50
PROCESSES = (2, 8, 32, 64)
CONTEND_S = 1.0
WAITERS = (1, 8, 32)
HAND_OFFS = 10
"""In each turn."""
SETTLE_S = 0.3
"""How long those who wait are left alone before the lock is freed, so that all of them do wait."""
_SHARES = {"alone": 0.25, "many": 0.45, "hand-off": 0.3}
Measured = Mapping[str, Sequence[float]]
"""What one turn brought, by the case."""


def run(site: Site, seconds: float) -> list[Result]:
    """Measure everything; who fails at something is left out there, and said so on stderr."""
    prepare(site.store)
    return Contest(site).run(seconds)


def many(what: str, processes: int) -> str:
    """Return what a case of so many at once is called."""
    return f"{what}, {processes} processes"


def handing_over(waiters: int) -> str:
    """Return what a case of hand-offs is called."""
    return f"{HAND_OFF}, {waiters} waiting"


class Contest:
    """Everybody who offers locks on one store, at one address."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._contenders = contenders(site.store)

    def run(self, seconds: float) -> list[Result]:
        """Measure everything."""
        results = self._alone(seconds * _SHARES["alone"])
        results += self._growing(self._many, PROCESSES, seconds * _SHARES["many"])
        results += self._growing(self._hand_off, WAITERS, seconds * _SHARES["hand-off"])
        lacks = {one.name: one.lacks for one in self._contenders}
        return [replace(result, lacks=lacks[result.variant]) for result in results]

    def _player(self, one: Contender, stack: ExitStack, what: str) -> Player:
        # A lock of each one's own: whoever is ended while he holds one leaves it behind until its lease is over.
        lock = f"{what}-{self._contenders.index(one)}"
        return stack.enter_context(closing(Player(self._site.store, one, self._site.url, lock)))

    # --- alone --------------------------------------------------------------------------------------------------------
    def _alone(self, seconds: float) -> list[Result]:
        """Take turns of a few cycles each: the median, and the slowest in a hundred and in a thousand."""
        with ExitStack() as stack:
            players = [self._player(one, stack, "alone") for one in self._contenders]
            players = [player for player in players if _is_able(player)]
            taken: dict[str, list[list[int]]] = {player.contender.name: [] for player in players}
            for _ in turns(seconds):
                for player in players:
                    taken[player.contender.name].append(player.ask("cycles", BATCH))
        medians = {name: [statistics.median(turn) / NS_PER_US for turn in own] for name, own in taken.items()}
        results = compare(ALONE, medians, "us")
        for tail, share in TAILS.items():
            for name, own in taken.items():
                value = quantile([ns for turn in own for ns in turn], share) / NS_PER_US
                results.append(summarise(f"{ALONE}, {tail}", name, "us", [value]))
        return results

    # --- together -----------------------------------------------------------------------------------------------------
    def _growing(
        self, measure: Callable[[int, Contender], Measured], sizes: Sequence[int], seconds: float
    ) -> list[Result]:
        """Measure with more and more processes; the next number is begun only while there is time."""
        results: list[Result] = []
        until = time.monotonic() + seconds
        for index, size in enumerate(sizes):
            left = until - time.monotonic()
            if index and left <= 0:
                print(f"{self._site.title}: no time was left for {sizes[index:]} processes", file=sys.stderr)
                break
            results += self._in_turns(partial(measure, size), max(left, 0.0) / (len(sizes) - index))
        return results

    def _in_turns(self, measure: Callable[[Contender], Measured], seconds: float) -> list[Result]:
        """Have each take turns at one case, who waits by himself; who fails in one of them is out."""
        left = [one for one in self._contenders if one.can_wait]
        samples: dict[str, dict[str, list[float]]] = {}
        for _ in turns(seconds, 1):
            for one in tuple(left):
                try:
                    found = measure(one)
                except ChildProcessError as error:
                    print(f"left out: {error}", file=sys.stderr)
                    left.remove(one)
                    continue
                for case, values in found.items():
                    samples.setdefault(case, {}).setdefault(one.name, []).extend(values)
        return [
            summarise(case, name, _unit(case), values) for case, own in samples.items() for name, values in own.items()
        ]

    def _many(self, processes: int, one: Contender) -> Measured:
        """Let them all take the lock as often as they can: how often together, and how evenly."""
        with ExitStack() as stack:
            players = [self._player(one, stack, f"many-{processes}") for _ in range(processes)]
            for player in players:
                player.tell("cycles", 1)
            for player in players:
                player.hear()
            for player in players:
                player.tell("contend", CONTEND_S)
            answers = [player.hear() for player in players]
        counts = [count for count, _ in answers]
        # Jain's index: 1 when all had the same number of turns, 1/n when one had them all.
        fairness = sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))
        longest = max(longest_ns for _, longest_ns in answers) / NS_PER_MS
        found = {RATE: sum(counts) / CONTEND_S, FAIRNESS: fairness, LONGEST: longest}
        return {many(what, processes): [value] for what, value in found.items()}

    def _hand_off(self, waiters: int, one: Contender) -> Measured:
        """Have one hold and the others wait, again and again: from the call of release to the next one's return."""
        taken: list[float] = []
        with ExitStack() as stack, DefaultSelector() as selector:
            players = [self._player(one, stack, f"hand-off-{waiters}") for _ in range(waiters + 1)]
            for player in players:
                player.ask("cycles", 1)
                selector.register(player, EVENT_READ, player)
            holder, *others = players
            holder.ask("acquire")
            for other in others:
                other.tell("acquire")
            time.sleep(SETTLE_S)
            for _ in range(HAND_OFFS):
                released_ns = holder.ask("release")
                ((key, _), *_rest) = selector.select()
                successor: Player = key.data
                taken.append((successor.hear() - released_ns) / NS_PER_MS)
                holder.tell("acquire")
                holder = successor
                time.sleep(SETTLE_S / 10)
        return {handing_over(waiters): taken}


def _unit(case: str) -> str:
    return {RATE: "/s", FAIRNESS: "of 1"}.get(case.partition(",")[0], "ms")


def _is_able(player: Player) -> bool:
    """Tell whether a contender works here at all, and have it import and connect what it needs."""
    try:
        player.ask("cycles", BATCH)
    except ChildProcessError as error:
        print(f"left out: {error}", file=sys.stderr)
        return False
    return True
