"""What a call with wrong arguments is told: what to write instead, also for the words of other lock libraries.

Promise: such a call stays the TypeError that it is, and signatures stay as they are written, for type
checkers and for `inspect`. Never: runs a call that Python refuses; and never stands around a call that acquires, since
a signal handler that raises on the way out of it would lose the lease (H5).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

_TTL = "write ttl=, the seconds of a lease, which is renewed until it is released"
_TIMEOUT = "write timeout=, the seconds to wait for the lock (what redis-py calls timeout is ttl= here)"
_NOT_BLOCKING = "leave it out, and write lock.acquire(blocking=False)"
_RENEWED = "leave it out: a background thread renews each lease"
_QUEUED = "leave it out: waiters stand in a queue, and the store's own way tells them of their turn"
_ADVICE: dict[str, tuple[str, ...]] = {
    _TTL: (
        *("auto_release_time", "duration", "expiration", "expire", "expires", "expiry", "lease", "lease_duration"),
        *("lease_time", "lifetime", "lock_timeout", "max_age", "ttl_ms", "ttl_s", "ttl_seconds"),
    ),
    _TIMEOUT: ("acquire_timeout", "blocking_timeout", "max_wait", "timeout_ms", "timeout_s", "wait", "wait_timeout"),
    _NOT_BLOCKING: ("block", "blocking", "fail_when_locked", "non_blocking", "nonblocking", "side_effect"),
    _RENEWED: ("auto_extend", "auto_renew", "auto_renewal", "heartbeat", "keep_alive", "renew"),
    _QUEUED: (
        *("check_interval", "interval", "poll_interval", "retries", "retry", "retry_count", "retry_delay"),
        *("retry_interval", "retry_times", "sleep"),
    ),
    "write holder=, a name for people": ("client_id", "id", "identifier", "member_id", "owner", "owner_id"),
    "write on_lost=": ("lost_callback", "on_expired", "on_loss"),
    "write source.rlock(name)": ("reentrant",),
    "leave it out: any thread may release the lease that acquire() returns": ("thread_local",),
    "leave it out: every lock is exclusive": ("exclusive", "shared"),
    "write name, the first argument": ("key", "lock_name", "resource"),
}
LOCK_WORDS = {word: advice for advice, words in _ADVICE.items() for word in words}
"""What redis-py, redlock, pottery, python-redis-lock, portalocker, filelock, django-pglock and tooz call things."""

_UNTIL_STOP = "leave it out: a loop over terms waits for the lock until stop= is set"
LEAD_WORDS = LOCK_WORDS | dict.fromkeys(("timeout", *_ADVICE[_TIMEOUT], *_ADVICE[_NOT_BLOCKING]), _UNTIL_STOP)

_OF_EACH_LOCK = "it belongs to each lock: source.lock(name, ttl=…, timeout=…, on_lost=…, holder=…)"
_IN_URL = "it is a part of the URL: postgresql://user:password@host:port/database"
CONNECT_WORDS = {
    **dict.fromkeys(LOCK_WORDS, _OF_EACH_LOCK),
    **dict.fromkeys(("holder", "name", "on_lost", "timeout", "ttl"), _OF_EACH_LOCK),
    **dict.fromkeys(("database", "db", "dbname", "dsn", "host", "hosts", "password", "port", "user"), _IN_URL),
}
GUARD_WORDS = {
    "lease": "give it to guard.transaction(lease)",
    "lock_name": "write lock=, the lock whose holder may write",
    "name": "write resource=, and lock= for the lock whose holder may write",
    "source": "leave it out: the lease, in guard.transaction(lease), says which source it is of",
    "table": "write resource=, and protect the table: guard.protect(table)",
    "tables": "write resource=, and protect the tables: guard.protect(*tables)",
}


MADE_BY_SOURCE = "write source = fencelock.connect(URL), or fencelock.aio.connect(URL), then source.lock(name)"
MADE_BY_CONNECT = "write fencelock.connect(URL), or fencelock.aio.connect(URL)"
MADE_BY_GUARD = "write fencelock.guard(URL, resource=…, lock=…), or fencelock.aio.guard(…)"


def advised(words: Mapping[str, str], usage: str = "") -> Callable[[Function], Function]:
    """Decorate a function so that arguments that it does not take are told what to write: `words` says it of some
    keywords, and `usage`, or else the function's own signature, of all others.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise  # The function ran.
                raise TypeError(_refusal(function, kwargs, words, usage or _usage(function), error)) from None

        return cast("Function", call)

    return decorate


def _refusal(
    function: Callable[..., Any], keywords: Iterable[str], words: Mapping[str, str], usage: str, error: TypeError
) -> str:
    parameters = inspect.signature(function).parameters
    if unknown := [word for word in keywords if word not in parameters]:
        name = function.__qualname__
        return "; ".join(f"{name}() has no argument {word!r}: {words.get(word, usage)}" for word in unknown)
    return f"{error}: {usage}"


def _usage(function: Callable[..., Any]) -> str:
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    shown = ", ".join(f"{one.name}=…" if one.kind is one.KEYWORD_ONLY else one.name for one in parameters)
    return f"write {function.__name__}({shown}), with what you need of it"
