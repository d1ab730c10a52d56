"""What operators remove from a guard's store: results that nobody asks for any more, and marks that nobody needs.

Promise: no result is removed that is in doubt, or that the last lease of a resource may ask for again. What a removed
mark refused, the floor of its source refuses.
"""

from typing import TYPE_CHECKING

from fencelock._api.durations import Duration, in_seconds, is_number
from fencelock._api.guard import operate_on
from fencelock._flows import purging
from fencelock.errors import ConfigError
from fencelock.model import check_name, check_reason, check_token, default_holder
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import Floor, PurgeEffects

if TYPE_CHECKING:
    from fencelock._api.source import Source

MAX_AGE_S = 1_000_000_000
"""The longest time, 31 years, for which a purge can leave something."""
MAX_SOURCE_ID_BYTES = 64
_MS_PER_S = 1000


def purge_effects(url: str, *, older_than: Duration) -> int:
    """Forget what guarded blocks with `once`, and `dispatch`, did at `url` more than `older_than` ago.

    Returns how many results there were. A key that is forgotten can be done again: `older_than`, seconds or a
    timedelta, is the time after which nobody asks for a key a second time. What is in doubt stays, and so does what the
    last lease of a resource did.
    """
    return operate_on(url, ask(PurgeEffects(checked_ms(older_than))))


def purge_marks(url: str, *, source: "Source | str", older_than: Duration) -> int:
    """Forget marks at `url` that were not written for `older_than`, and return how many there were.

    `older_than` is seconds, or a timedelta.

    `source` is the source of the locks, or its URL: only marks of its tokens go. The highest token that goes becomes
    the floor of the source: from then on a resource without a mark is sealed only above it. A holder whose token is
    older, and who seals a resource for the first time, gets StaleTokenError, and acquires its lock again.

    These marks stay: those of running leases, of resources that protect a table, that require signatures or that were
    moved by `rebind`, and a mark above the source's last token.
    """
    age_ms = checked_ms(older_than)
    if isinstance(source, str):
        from fencelock._api.source import connect

        with connect(source) as connected:
            return _purge_marks_of(connected, url, age_ms)
    return _purge_marks_of(source, url, age_ms)


def set_floor(url: str, source_id: str, token: int, *, reason: str, expected: int | None = None) -> None:
    """Set the floor of purged marks of one source at `url`: the remedy for one that is too high; 0 removes it.

    GuardError if somebody has changed it meanwhile: since it was read here, or since it was `expected`.

    A lower floor lets stale writers in if marks up to the old one were purged. After `url` was restored from a backup,
    raise it to the source's last token, as `fencelock marks --raise-to` does: then the resources whose marks the backup
    lacks refuse older tokens.
    """
    check_name(source_id, what="source id", limit_bytes=MAX_SOURCE_ID_BYTES)
    floor = Floor(source_id, token and check_token(token))
    if expected:
        check_token(expected)
    operate_on(url, purging.set_floor(floor, default_holder(), check_reason(reason), expected))


def _purge_marks_of(source: "Source", url: str, older_than_ms: int) -> int:
    def read_held() -> frozenset[int]:
        return frozenset(lock.token for lock in source.locks() if lock.is_held and lock.token is not None)

    return operate_on(url, purging.purge_marks(source.describe(), read_held, older_than_ms, default_holder()))


def checked_ms(older_than: Duration) -> int:
    """Return an age in milliseconds; ConfigError if it is none."""
    seconds = in_seconds(older_than)  # From untyped code it may be anything; `not … >= 0` is true of NaN.
    if not is_number(seconds) or not 0 <= seconds <= MAX_AGE_S:
        raise ConfigError(f"older_than must be seconds from 0 to {MAX_AGE_S}, not {older_than!r}")
    return int(seconds * _MS_PER_S)
