"""The page of a history: one standalone HTML file with its timeline, its figures and its verdict.

Promise: the page asks for nothing from any network, and needs only a browser. What a history brings along is data on
it, never markup or script. Times are seconds since the first operation. What broke a promise is marked, and only that.
"""

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from fencelock_lab.campaigns.evidence import writes_seen
from fencelock_lab.campaigns.history import (
    ACQUIRE,
    DELAY,
    DISTURBANCES,
    FAIL,
    FREEZE,
    JUMP,
    KILL,
    NS_PER_S,
    OK,
    PARTITION,
    READ,
    RELEASE,
    RESTORE,
    SERVER_BACK,
    THAW,
    WRITE,
    History,
    HistoryEvent,
    Operation,
)
from fencelock_lab.campaigns.verdict import CampaignVerdict

MAX_BUCKETS = 240
LEAST_BUCKET_S = 1.0
"""Into how many pieces of time the figures are divided at most, and how long one is at least."""
_DATA = "__DATA__"


def write_page(path: Path, history: History, verdict: CampaignVerdict) -> None:
    """Write the page of a history and its verdict to a file."""
    data = json.dumps(page_data(history, verdict), separators=(",", ":"))
    template = files("fencelock_lab.campaigns").joinpath("page.html").read_text(encoding="utf-8")
    # Inside a script's text nothing but "<" could end it.
    path.write_text(template.replace(_DATA, data.replace("<", "\\u003c")), encoding="utf-8")


def page_data(history: History, verdict: CampaignVerdict) -> dict[str, Any]:
    """Return what the page draws: each list has its rows in the order of time."""
    scale = Scale(history)
    told = verdict.to_json()
    # The last of a violation's operations is the one that broke the promise; the others show why.
    blamed = {id(one.operations[-1]) for one in verdict.findings.violations if one.operations}
    return {
        "verdict": told,
        "settings": {key: history.settings.get(key) for key in ("ttl", "seed", "source", "guard", "control")},
        "end": scale.at(history.end_ns),
        "lanes": scale.lanes,
        "servers": scale.servers,
        "places": scale.places,
        "leases": list(_leases(history, scale, blamed)),
        "frozen": list(_frozen(history, scale)),
        "struck": list(_struck(history, scale)),
        "disturbed": [row for event in history.events if (row := _disturbed(event, scale)) is not None],
        "operations": [_drawn(one, scale, id(one) in blamed) for one in history.operations if _is_drawn(one)],
        "figures": figures(history, scale),
    }


class Scale:
    """Where things are drawn: seconds since the beginning, a lane for each worker, a number for each place."""

    def __init__(self, history: History) -> None:
        self.zero_ns = history.operations[0].invoked_ns if history.operations else 0
        names = {lane_of(one.process) for one in history.operations}
        servers = {name for one in history.events for name in one.facts.get("servers", ())}
        self.lanes = [*sorted(names, key=lambda name: (len(name), name)), *sorted(servers)]
        self.places = sorted({one.place for one in history.operations})
        self.servers = len(servers)
        self._lanes = {name: number for number, name in enumerate(self.lanes)}
        self._places = {name: number for number, name in enumerate(self.places)}

    def at(self, time_ns: float) -> float:
        """Return a time in seconds, to the microsecond."""
        return round((time_ns - self.zero_ns) / NS_PER_S, 6)

    def lane(self, process: str | None) -> int:
        """Return the lane of a process; -1 if it has none, since it did nothing."""
        return self._lanes.get(lane_of(process or ""), -1)

    def place(self, name: str) -> int:
        """Return the number of a lock or resource."""
        return self._places[name]


def lane_of(process: str) -> str:
    """Return the worker of which a process is one life, with the number of the thread if it has several."""
    worker, _, life = process.partition(".")
    _, slash, thread = life.partition("/")
    return f"{worker}{slash}{thread}"


def _leases(history: History, scale: Scale, blamed: set[int]) -> Iterator[tuple[int, float, float, str, int, bool]]:
    """Yield each lease from its grant to the end of its release, or of the history, as its process saw it."""
    since: dict[tuple[str, str], Operation] = {}
    for one in history.operations:
        key = (one.process, one.place)
        if one.kind == ACQUIRE and one.outcome == OK:
            since.setdefault(key, one)
        elif one.kind == RELEASE and key in since:
            granted = since.pop(key)
            yield _lease(granted, one.completed_ns or one.invoked_ns, scale, id(granted) in blamed)
    for granted in since.values():
        yield _lease(granted, granted.until_ns or history.end_ns, scale, id(granted) in blamed)


def _lease(granted: Operation, end_ns: int, scale: Scale, is_blamed: bool) -> tuple[int, float, float, str, int, bool]:
    began, lane = scale.at(granted.completed_ns or granted.invoked_ns), scale.lane(granted.process)
    return lane, began, scale.at(end_ns), str(granted.token), scale.place(granted.place), is_blamed


def _frozen(history: History, scale: Scale) -> Iterator[tuple[int, float, float]]:
    since: dict[str, int] = {}
    for event in history.events:
        victim = event.victim or ""
        if event.kind == FREEZE:
            since[victim] = event.time_ns
        elif event.kind == THAW and victim in since:
            yield scale.lane(victim), scale.at(since.pop(victim)), scale.at(event.time_ns)
    for victim, began_ns in since.items():
        yield scale.lane(victim), scale.at(began_ns), scale.at(history.end_ns)


def _struck(history: History, scale: Scale) -> Iterator[tuple[int, float, float, str]]:
    """Yield what was done to each server, until it was back."""
    since: dict[str, HistoryEvent] = {}
    for event in history.events:
        for server in event.facts.get("servers", ()):
            if event.kind != SERVER_BACK:
                since[server] = event
            elif server in since:
                begun = since.pop(server)
                yield scale.lane(server), scale.at(begun.time_ns), scale.at(event.time_ns), begun.kind
    for server, begun in since.items():
        yield scale.lane(server), scale.at(begun.time_ns), scale.at(history.end_ns), begun.kind


def _disturbed(event: HistoryEvent, scale: Scale) -> tuple[int, float, float, str] | None:
    if event.kind not in {KILL, *DISTURBANCES, JUMP, RESTORE}:
        return None
    lasts = float(event.facts.get("seconds", 0)) if event.kind in {PARTITION, DELAY} else 0.0
    began = scale.at(event.time_ns)
    side = f" by {event.facts['seconds']:.0f} s" if event.kind == JUMP else ""
    side += f" of the {event.facts['side']}" if "side" in event.facts else ""
    return scale.lane(event.victim), began, round(began + lasts, 6), f"{event.kind}{side}"


def _is_drawn(one: Operation) -> bool:
    """Reads and writes tell what happened; of the rest, releases that were refused or never answered."""
    return one.kind in {READ, WRITE} or (one.kind == RELEASE and one.outcome != OK)


def _drawn(one: Operation, scale: Scale, is_blamed: bool) -> tuple[int, float, float, str, str, str, int, bool]:
    outcomes = {OK: "read" if one.kind == READ else "ok", FAIL: "refused"}
    ended = scale.at(one.completed_ns or one.invoked_ns)
    seen = f", {writes_seen(one)}" if one.kind == READ and one.position is not None else ""
    text = f"{one.kind} {one.write or ''}".strip() + seen + (f": {one.error}" if one.error else "")
    began, place = scale.at(one.invoked_ns), scale.place(one.place)
    outcome = outcomes.get(one.outcome, "unknown")
    return scale.lane(one.process), began, ended, outcome, str(one.token), text, place, is_blamed


def figures(history: History, scale: Scale) -> dict[str, Any]:
    """Return for each piece of time what was accepted and refused in a second, and how long writes took."""
    end = max(scale.at(history.end_ns), 0.0)
    width = max(end / MAX_BUCKETS, LEAST_BUCKET_S)
    buckets = int(end / width) + 1
    writes, refusals = [0] * buckets, [0] * buckets
    took_ms: list[list[float]] = [[] for _ in range(buckets)]
    for one in history.operations:
        if one.kind not in {READ, WRITE} or one.completed_ns is None:
            continue
        bucket = min(buckets - 1, int(scale.at(one.completed_ns) / width))
        refusals[bucket] += one.outcome == FAIL
        if one.kind == WRITE and one.outcome == OK:
            writes[bucket] += 1
            took_ms[bucket].append((one.completed_ns - one.invoked_ns) / 1e6)
    return {
        "width": width,
        "writes": [round(count / width, 2) for count in writes],
        "refusals": [round(count / width, 2) for count in refusals],
        "median": [_rank(times, 0.5) for times in took_ms],
        "slow": [_rank(times, 0.99) for times in took_ms],
    }


def _rank(times: list[float], share: float) -> float | None:
    """Return the time that this share of them does not exceed; None of none."""
    return round(sorted(times)[min(len(times) - 1, int(len(times) * share))], 3) if times else None
