"""The roles of etcd's own access control that keep each application to what is its own, as commands of etcdctl.

Promise: a shell script that may run again. An application's role of a guard may write one resource and its mark, and no
other mark. A role of a source may take, renew and release locks, but cannot write the source's record, from which every
token is computed.
Never: a password, or anything sent to etcd.
"""

import shlex
from collections.abc import Iterator

from fencelock.stores.etcd.guard.codec import EtcdGuardLayout
from fencelock.stores.etcd.source.layout import EtcdLayout

_READ, _WRITE = "read", "readwrite"
_NAMES = ((b"%", b"."), (b"0", b"{"))
"""The ranges of all names of locks, which begin with no dot: below a dot, the keys are fencelock's own."""


def guard_policy(layout: EtcdGuardLayout, locks: EtcdLayout | None, resource: str, lock: str, role: str) -> str:
    """Return the commands that let a role write one resource, its mark and its effects."""
    keys = layout.prefix.decode()
    lines = [
        f"# role {role!r} may write resource {resource!r} of lock {lock!r}, and no other mark",
        *_begin(role),
        _grant(role, _WRITE, layout.area(resource), "--prefix=true"),
        _grant(role, _WRITE, layout.mark(resource)),
        _grant(role, _WRITE, layout.effects(resource), "--prefix=true"),
        # A first seal looks here for the floor of purged marks, and for a source that the guard would conflict with.
        _grant(role, _READ, layout.floors),
        _grant(role, _READ, EtcdLayout(layout.prefix).record),
    ]
    if locks is not None:
        lines += [_grant(role, _READ, locks.record), _grant(role, _READ, locks.queue(lock), "--prefix=true")]
    return "\n".join([*lines, *_end(role, keys, "who move marks and read all of them")])


def source_policy(layout: EtcdLayout, role: str) -> str:
    """Return the commands that let a role take, renew and release every lock of a source."""
    lines = [
        f"# role {role!r} may take and release locks, and may not change the source's record",
        *_begin(role),
        *(_grant(role, _WRITE, layout.prefix + begin, end=layout.prefix + end) for begin, end in _NAMES),
        *(_grant(role, _WRITE, parent, "--prefix=true") for parent in layout.written_by_holders()),
        _grant(role, _READ, layout.record),
        _grant(role, _READ, layout.breaks, "--prefix=true"),
    ]
    return "\n".join([*lines, *_end(role, layout.prefix.decode(), "who install, break, purge and raise the epoch")])


def _begin(role: str) -> Iterator[str]:
    name = shlex.quote(role)
    yield f"etcdctl role get {name} >/dev/null 2>&1 || etcdctl role add {name}"


def _end(role: str, prefix: str, who: str) -> Iterator[str]:
    yield f"# Then: etcdctl user grant-role USER {shlex.quote(role)}; and, once for the cluster: etcdctl auth enable"
    yield f"# Operators, {who}, need readwrite on the whole prefix {prefix!r}."


def _grant(role: str, right: str, key: bytes, *options: str, end: bytes | None = None) -> str:
    words = [*options, role, right, key.decode(), *([] if end is None else [end.decode()])]
    return f"etcdctl role grant-permission {shlex.join(words)}"
