"""Which leases a server may have ended early: those that it forgot when it crashed, or that a restore has ended.

Promise: only what the store's own reference allows is taken from a lease, and only from one that was granted before.
Checkers then know of such a lease only that it was held until the server was gone.
"""

from collections.abc import Iterator

from fencelock_lab.campaigns.history import ACQUIRE, NS_PER_S, OK, SERVER_KILL, SERVER_RESTORE, History


def shorten_leases(history: History) -> None:
    """Let no lease be relied on beyond the moment at which its server may have forgotten it."""
    endings = list(_endings(history))
    if not endings:
        return
    begun: dict[tuple[str, int | None], int] = {}
    for one in history.operations:
        if one.kind == ACQUIRE and one.outcome == OK:
            begun.setdefault((one.process, one.token), one.invoked_ns)  # One that enters again has it already.
    for one in history.operations:
        for gone_ns, kept_ns in endings:
            if one.until_ns is None or one.completed_ns is None or one.completed_ns < kept_ns:
                continue
            if begun.get((one.process, one.token), one.invoked_ns) < gone_ns:
                one.until_ns = min(one.until_ns, gone_ns)


def _endings(history: History) -> Iterator[tuple[int, int]]:
    """Yield when a server was gone, and before which moment what it had confirmed by then outlives it."""
    for event in history.events:
        if event.kind == SERVER_RESTORE:
            yield event.time_ns, 0
        elif event.kind == SERVER_KILL and "forgets" in event.facts:
            yield event.time_ns, event.time_ns - int(float(event.facts["forgets"]) * NS_PER_S)
