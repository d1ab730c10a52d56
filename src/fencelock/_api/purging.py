"""What operators remove from a guard's store: results that nobody asks for any more.

Promise: nothing is removed that is in doubt, or that the last lease of a resource may ask for again.
"""

from fencelock._api.guard import operate_on
from fencelock.errors import ConfigError
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import PurgeEffects

MAX_AGE_S = 1_000_000_000
"""The longest time, 31 years, for which a purge can leave results."""
_MS_PER_S = 1000


def purge_effects(url: str, *, older_than: float) -> int:
    """Forget what guarded blocks with `once`, and `dispatch`, did at `url` more than `older_than` seconds ago.

    Returns how many results there were. A key that is forgotten can be done again: `older_than` is the time after which
    nobody asks for a key a second time. What is in doubt stays, and so does what the last lease of a resource did.
    """
    seconds: object = older_than  # From untyped code it may be anything; `not … >= 0` is true of NaN.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_AGE_S:
        raise ConfigError(f"older_than must be seconds from 0 to {MAX_AGE_S}, not {older_than!r}")
    return operate_on(url, ask(PurgeEffects(int(seconds * _MS_PER_S))))
