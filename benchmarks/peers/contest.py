"""Measure all contenders of one store in turns: alone, many at once, and handing over from one to the next."""

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from selectors import EVENT_READ, DefaultSelector

from benchmarks.measure import Result, compare, summarise
from benchmarks.peers.contender import Contender
from benchmarks.peers.player import Player, contenders

BATCH = 50
TURNS = 40
PROCESSES = (2, 8, 32, 64)
CONTEND_S = 2.0
WAITERS = (1, 8, 32)
HAND_OFFS = 60
SETTLE_S = 0.3
"""How long those who wait are left alone before the lock is freed, so that all of them do wait."""
HAND_OFF_LIMIT_S = 20.0
NS_PER_US, NS_PER_MS = 1e3, 1e6


class Contest:
    """Everybody who offers locks on one store, at one address."""

    def __init__(self, store: str, url: str, scale: float) -> None:
        self._store = store
        self._url = url
        self._scale = scale
        self._contenders = contenders(store)

    def run(self) -> list[Result]:
        """Measure everything; who fails at something is left out there, and said so on stderr."""
        results = self._alone()
        fit = [one for one in self._contenders if one.can_wait]
        for processes in PROCESSES if self._scale >= 1 else PROCESSES[:1]:
            results += self._for_each(fit, f"{processes} processes at once", lambda one: self._many(one, processes))  # noqa: B023
        for waiters in WAITERS if self._scale >= 1 else WAITERS[:1]:
            results += self._for_each(fit, f"hand-off, {waiters} waiting", lambda one: self._hand_off(one, waiters))  # noqa: B023
        return results

    def _case(self, what: str) -> str:
        return f"{self._store}: {what}"

    def _player(self, one: Contender, stack: ExitStack, what: str) -> Player:
        # A lock of each one's own: whoever is ended while he holds one leaves it behind until its lease is over.
        lock = f"{what}-{self._contenders.index(one)}"
        return stack.enter_context(closing(Player(self._store, one, self._url, lock)))

    # --- alone --------------------------------------------------------------------------------------------------------
    def _alone(self) -> list[Result]:
        """Take turns of a few cycles each: the median, and the slowest in a hundred and in a thousand."""
        with ExitStack() as stack:
            players = [self._player(one, stack, "alone") for one in self._contenders]
            players = [player for player in players if _is_able(player)]
            turns: dict[str, list[list[int]]] = {player.contender.name: [] for player in players}
            for _ in range(int(TURNS * self._scale) + 3):
                for player in players:
                    turns[player.contender.name].append(player.ask("cycles", BATCH))
        medians = {name: [statistics.median(turn) / NS_PER_US for turn in own] for name, own in turns.items()}
        results = compare(self._case("acquire and release"), medians, "us")
        for share, title in ((0.99, "slowest in a hundred"), (0.999, "slowest in a thousand")):
            for name, own in turns.items():
                slowest = sorted(ns for turn in own for ns in turn)
                value = slowest[min(int(len(slowest) * share), len(slowest) - 1)] / NS_PER_US
                results.append(summarise(self._case(title), name, "us", [value]))
        return self._with_lacks(results)

    def _with_lacks(self, results: list[Result]) -> list[Result]:
        lacks = {one.name: one.lacks for one in self._contenders}
        return [replace(result, lacks=lacks[result.variant]) for result in results]

    # --- together -----------------------------------------------------------------------------------------------------
    def _for_each(self, fit: list[Contender], what: str, measure: Callable[[Contender], list[Result]]) -> list[Result]:
        results = []
        for one in fit:
            try:
                results += measure(one)
            except ChildProcessError as error:
                print(f"{self._case(what)}: {error}", file=sys.stderr)
        return sorted(self._with_lacks(results), key=lambda result: result.case)

    def _many(self, one: Contender, processes: int) -> list[Result]:
        """Let them all take the lock as often as they can: how often together, and how evenly."""
        with ExitStack() as stack:
            players = [self._player(one, stack, f"many-{processes}") for _ in range(processes)]
            for player in players:
                player.ask("cycles", 1)
            for player in players:
                player.tell("contend", CONTEND_S)
            answers = [player.hear() for player in players]
        counts = [count for count, _ in answers]
        # Jain's index: 1 when all had the same number of turns, 1/n when one had them all.
        fairness = sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))
        longest = max(longest_ns for _, longest_ns in answers) / NS_PER_MS
        case = self._case(f"{processes} processes at once")
        return [
            summarise(f"{case}, cycles a second", one.name, "/s", [sum(counts) / CONTEND_S]),
            summarise(f"{case}, fairness", one.name, "of 1", [fairness]),
            summarise(f"{case}, longest wait", one.name, "ms", [longest]),
        ]

    def _hand_off(self, one: Contender, waiters: int) -> list[Result]:
        """Have one hold and the others wait, again and again: from the call of release to the next one's return."""
        taken: list[float] = []
        with ExitStack() as stack, DefaultSelector() as selector:
            players = [self._player(one, stack, f"hand-off-{waiters}") for _ in range(waiters + 1)]
            for player in players:
                player.ask("cycles", 1)
                selector.register(player.output, EVENT_READ, player)
            holder, *others = players
            holder.ask("acquire")
            for other in others:
                other.tell("acquire")
            time.sleep(SETTLE_S)
            until = time.monotonic() + HAND_OFF_LIMIT_S * min(self._scale, 1)
            while len(taken) < HAND_OFFS and time.monotonic() < until:
                released_ns = holder.ask("release")
                ((key, _), *_rest) = selector.select()
                successor: Player = key.data
                taken.append((successor.hear() - released_ns) / NS_PER_MS)
                holder.tell("acquire")
                holder = successor
                time.sleep(SETTLE_S / 10)
        return [summarise(self._case(f"hand-off, {waiters} waiting"), one.name, "ms", taken)]


def _is_able(player: Player) -> bool:
    """Tell whether a contender works here at all, and have it import and connect what it needs."""
    try:
        player.ask("cycles", BATCH)
    except ChildProcessError as error:
        print(f"left out: {error}", file=sys.stderr)
        return False
    return True
