"""Measure all contenders of one store in turns: alone, under contention, and handing over to a waiter."""

import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from operator import itemgetter
from selectors import EVENT_READ, DefaultSelector

from fencelock_lab.benchmarks.child import REQUEST_TIMEOUT_S
from fencelock_lab.benchmarks.measure import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    Measurement,
    compare,
    quantile,
    summarise,
    turns,
)
from fencelock_lab.benchmarks.peers.contender import Contender
from fencelock_lab.benchmarks.peers.player import Player, contenders, prepare
from fencelock_lab.benchmarks.stores import Site

ALONE = "acquire and release"
TAILS = {"p99": 0.99, "p99.9": 0.999}
RATE, FAIRNESS, LONGEST = "cycles a second", "fairness", "longest wait"
HAND_OFF = "hand-off"
BATCH = 50
PROCESSES = (2, 8, 32, 64)
CONTEND_S = 1.0
TURNS = 3
"""The fewest turns of all contenders: one turn of a second says nothing about how much the next one differs."""
WAITERS = (1, 8, 32)
HAND_OFFS = 10
"""In each turn."""
SETTLE_S = 0.3
"""How long those who wait are left alone before the lock is freed, so that all of them do wait."""
ALONE_SHARE = 0.25
"""Of the time; the rest is for many at once."""
Measured = Mapping[str, Sequence[float]]
"""What one turn brought, by the case."""


def run(site: Site, seconds: float) -> list[Measurement]:
    """Measure everything; leave a library out of a case in which it fails, and say so on stderr."""
    prepare(site.store)
    return Contest(site).run(seconds)


def many(what: str, processes: int) -> str:
    """Return the name of a case with this many processes."""
    return f"{what}, {processes} processes"


def handing_over(waiters: int) -> str:
    """Return the name of a hand-off case."""
    return f"{HAND_OFF}, {waiters} waiting"


class Contest:
    """All lock libraries on one store, at one address."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._contenders = contenders(site.store)

    def run(self, seconds: float) -> list[Measurement]:
        """Measure everything in TURNS turns at least; use the time that is left for further ones."""
        until = time.monotonic() + seconds
        is_contended = any(one.can_wait for one in self._contenders)
        results = self._alone(seconds * ALONE_SHARE if is_contended else seconds)
        results += self._together(until)
        lacks = {one.name: one.lacks for one in self._contenders}
        return [replace(result, lacks=lacks[result.variant]) for result in results]

    def _player(self, one: Contender, what: str) -> Player:
        # Each library has a lock of its own in each turn: a process that is killed while it holds or awaits a lock
        # leaves it behind until its lease is over.
        return Player(self._site.store, one, self._site.url, f"{what}-{self._contenders.index(one)}")

    # --- alone --------------------------------------------------------------------------------------------------------
    def _alone(self, seconds: float) -> list[Measurement]:
        """Take turns of a few cycles each: the median, and the slowest in a hundred and in a thousand."""
        with ExitStack() as stack:
            players = [stack.enter_context(closing(self._player(one, "alone"))) for one in self._contenders]
            able = [player for player in players if _cycles(player)]
            taken: dict[str, list[list[int]]] = {player.contender.name: [] for player in able}
            for _ in turns(seconds):
                for player in tuple(able):
                    if cycles := _cycles(player):
                        taken[player.contender.name].append(cycles)
                    else:
                        able.remove(player)
                        del taken[player.contender.name]
        medians = {name: [statistics.median(turn) / NS_PER_US for turn in own] for name, own in taken.items()}
        results = compare(ALONE, medians, "us")
        for tail, share in TAILS.items():
            for name, own in taken.items():
                value = quantile([ns for turn in own for ns in turn], share) / NS_PER_US
                results.append(summarise(f"{ALONE}, {tail}", name, "us", [value]))
        return results

    # --- together -----------------------------------------------------------------------------------------------------
    def _together(self, until: float) -> list[Measurement]:
        """Let each contender that can wait take turns at all sizes; after TURNS begin another only if time is left."""
        left = [one for one in self._contenders if one.can_wait]
        samples: dict[str, dict[str, list[float]]] = {}
        for number in itertools.count():
            began = time.monotonic()
            for one in tuple(left):
                try:
                    for case, values in self._turn(one, number):
                        samples.setdefault(case, {}).setdefault(one.name, []).extend(values)
                except ChildProcessError as error:
                    print(f"left out from here on: {error}", file=sys.stderr)
                    left.remove(one)
            if not left or (number + 1 >= TURNS and 2 * time.monotonic() - began > until):
                break
        return [
            summarise(case, name, _unit(case), values) for case, own in samples.items() for name, values in own.items()
        ]

    def _turn(self, one: Contender, number: int) -> Iterator[tuple[str, Sequence[float]]]:
        """Measure one contender with more and more processes; start each process once."""
        steps = [(size, partial(_contend, size)) for size in PROCESSES]
        steps += [(waiters + 1, partial(_hand_over, waiters)) for waiters in WAITERS]
        steps = [step for step in steps if step[0] <= self._site.most_processes]
        players: list[Player] = []
        with ExitStack() as stack:
            for size, measure in sorted(steps, key=itemgetter(0)):
                fresh = [self._player(one, f"turn-{number}") for _ in range(size - len(players))]
                for player in fresh:
                    stack.callback(player.close)
                    player.send("cycles", 1)
                for player in fresh:
                    player.receive()
                players += fresh
                yield from measure(players[:size]).items()


def _contend(size: int, players: Sequence[Player]) -> Measured:
    """Let all processes acquire the lock as often as they can; return the rate, and how even their shares are."""
    began_ns = time.monotonic_ns()
    for player in players:
        player.send("contend", CONTEND_S)
    counts, longest_ns, ended_ns = zip(*(player.receive() for player in players), strict=True)
    rate = sum(counts) / (max(ended_ns) - began_ns) * NS_PER_S
    # Jain's index: 1 when all had the same number of turns, 1/n when one had them all.
    fairness = sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))
    found = {RATE: rate, FAIRNESS: fairness, LONGEST: max(longest_ns) / NS_PER_MS}
    return {many(what, size): [value] for what, value in found.items()}


def _hand_over(waiters: int, players: Sequence[Player]) -> Measured:
    """Have one hold and the others wait, repeatedly; time each hand-off from release until the next acquire returns."""
    taken: list[float] = []
    with DefaultSelector() as selector:
        for player in players:
            selector.register(player, EVENT_READ, player)
        holder, *others = players
        holder.ask("acquire")
        for other in others:
            other.send("acquire")
        time.sleep(SETTLE_S)
        for _ in range(HAND_OFFS):
            released_ns = holder.ask("release")
            successor = _first(selector, holder.name)
            taken.append((successor.receive() - released_ns) / NS_PER_MS)
            holder.send("acquire")
            holder = successor
            time.sleep(SETTLE_S / 10)
    _let_go(holder, [player for player in players if player is not holder])
    return {handing_over(waiters): taken}


def _first(selector: DefaultSelector, name: str) -> Player:
    """Return the first player that answers."""
    for key, _ in selector.select(REQUEST_TIMEOUT_S):
        player: Player = key.data
        return player
    raise ChildProcessError(f"{name}: no waiter was granted the lock within {REQUEST_TIMEOUT_S:g} s")


def _let_go(holder: Player, others: Sequence[Player]) -> None:
    """Let every waiter acquire the lock once and release it at once."""
    for other in others:
        other.send("release")
    holder.ask("release")
    for other in others:
        other.receive()
        other.receive()


def _unit(case: str) -> str:
    return {RATE: "/s", FAIRNESS: "of 1"}.get(case.partition(",")[0], "ms")


def _cycles(player: Player) -> list[int]:
    """Return the nanoseconds of each cycle of a batch; none if the contender fails or hangs. The first batch also makes
    it import and connect what it needs.
    """
    try:
        taken: list[int] = player.ask("cycles", BATCH)
    except ChildProcessError as error:
        print(f"left out: {error}", file=sys.stderr)
        return []
    return taken
