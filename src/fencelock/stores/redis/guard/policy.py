"""The rights of Redis's own ACL that keep each application to its own mark, as commands of redis-cli.

Promise: a shell script that may run again. An application's user may write the data and one resource's mark and
effects, and no other mark, no floor and no audit entry, and may not delete all keys.
Never: a password, or anything sent to Redis.
"""

import shlex

from fencelock.stores.redis.guard.layout import RedisLayout

_COMMANDS = (
    "nocommands", "+@read", "+@write", "-@dangerous", "+eval", "+multi", "+exec", "+discard", "+watch", "+unwatch",
    "+select", "+info", "+command", "+config|get",
)  # fmt: skip
_GLOB = str.maketrans({character: f"\\{character}" for character in "*?[]\\"})


def guard_policy(layout: RedisLayout, resource: str, lock: str, role: str) -> str:
    """Return the commands that let a user write one resource, its mark and its effects."""
    prefix = layout.info.prefix.translate(_GLOB)
    data = f"~{{{prefix}}}:*"
    keys = [
        "resetkeys",
        data,
        *(f"~{_pattern(key)}" for key in (layout.mark(resource), layout.effects(resource))),
        *(f"%R~{_pattern(key)}" for key in (layout.floors, layout.slot)),
    ]
    comments = [
        f"# user {role!r} may write resource {resource!r} of lock {lock!r}, and no other mark",
        f"# {data} stands for the data: write the resource's own keys in its place",
    ]
    after = [
        f"# Then: redis-cli ACL SETUSER {shlex.quote(role)} on '>PASSWORD'; redis-cli ACL SAVE",
        "# In a cluster: all of it on each server.",
        "# Once: redis-cli ACL SETUSER default off. Operators, who make and move marks, need all keys and -@dangerous.",
    ]
    return "\n".join([*comments, shlex.join(["redis-cli", "ACL", "SETUSER", role, *keys, *_COMMANDS]), *after])


def _pattern(key: bytes) -> str:
    return key.decode().translate(_GLOB)
