"""What the use of a handle's method as a module's function is told: `fencelock.lock("x")`, `fencelock.acquire("x")`.

Promise: an AttributeError, as for any name that a module does not have. Imports nothing: Python asks for unknown names
at each `from fencelock import aio`, too.
"""

_SOURCE = ("source", "connect(URL)")
_LOCK = ("lock", "connect(URL).lock(name)")
_GUARD = ("guard", "guard(URL, resource=…, lock=…)")
METHODS = {
    "acquire": _LOCK,
    "break_lock": _SOURCE,
    "install": _SOURCE,
    "lead": _SOURCE,
    "lock": _SOURCE,
    "locks": _SOURCE,
    "protect": _GUARD,
    "purge": _SOURCE,
    "release": _LOCK,
    "rlock": _SOURCE,
    "seal": _GUARD,
    "transaction": _GUARD,
}
"""The methods by which programs begin, and how to get the handle that has them."""


def no_attribute(module: str, name: str) -> AttributeError:
    """Return the error for a name that `fencelock` or `fencelock.aio` does not have."""
    problem = f"module {module!r} has no attribute {name!r}"
    method = name.lower()
    if method in METHODS:
        handle, made = METHODS[method]
        problem += f": write {handle} = {module}.{made}, then {handle}.{method}(…)"
    return AttributeError(problem)
