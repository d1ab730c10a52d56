"""The access lists of ZooKeeper that keep each application to what is its own, as input of zkCli.sh.

ZooKeeper's lists belong to single nodes, and the right to delete a node is its parent's. So an operator makes a
resource's mark and root, and the parents of both, before the application writes.

Promise: a shell script that may run again. An application may write the nodes of one resource and its mark, and no
other mark. A worker may take, renew and release locks, but cannot write the source's record, from which every token is
computed.
Never: a password, or anything sent to ZooKeeper.
"""

import re
from collections.abc import Iterator, Sequence

from fencelock.errors import ConfigError
from fencelock.model import Mark
from fencelock.stores.encoding import RESERVED
from fencelock.stores.optimistic.stored_values import StoredMark, encode_mark
from fencelock.stores.zookeeper.guard.codec import ZooKeeperGuardLayout
from fencelock.stores.zookeeper.source.layout import ZooKeeperLayout

_IDENTITY = re.compile(r"[a-z0-9]+:[^\s,'\"]+")
_OPERATOR = "auth::cdrwa"
"""Everything for the users as whom the script's session has authenticated: the operator."""
_READERS = f"{_OPERATOR},world:anyone:r"
"""The floors: the users of every resource read them, and the list of one resource's users would replace another's."""


def guard_policy(hosts: str, layout: ZooKeeperGuardLayout, resource: str, lock: str, roles: Sequence[str]) -> str:
    """Return the commands that let users write one resource, its mark and its effects."""
    mark = encode_mark(StoredMark(Mark(resource, lock))).decode().replace("'", r"\u0027")
    own = [
        *_node(layout.mark(resource), _list(roles, "cdrw"), mark),
        *_node(layout.effects(resource), _list(roles, "cdrw")),
        *_node(layout.root(resource), _list(roles, "cdrw")),
    ]
    shared = [layout.base, *(f"{layout.base}/{RESERVED}{part}" for part in ("", "/marks", "/audit", "/effects"))]
    lines = [line for path in shared for line in _node(path, _OPERATOR)]
    lines += _node(layout.floors, _READERS)
    return "\n".join(
        [
            f"# {', '.join(roles)} may write resource {resource!r} of lock {lock!r}, and no other mark.",
            "# OPERATOR=user:password is the operator's login; only this user may make, move and remove marks.",
            *_script(hosts, [*_parents(layout.base), *lines, *own]),
        ]
    )


def source_policy(hosts: str, layout: ZooKeeperLayout, roles: Sequence[str]) -> str:
    """Return the commands that let users take, renew and release every lock of a source."""
    operators = [layout.reserved, layout.breaks, layout.epochs]
    lines = [
        *_node(layout.base, _list(roles, "cr")),
        *(line for path in operators for line in _node(path, _OPERATOR)),
        f"setAcl {layout.source} {_list(roles, 'r')}",
    ]
    return "\n".join(
        [
            f"# {', '.join(roles)} may take and release locks, and may not change the source's record.",
            "# Run it after `fencelock install` by the operator, whose login is OPERATOR=user:password.",
            "# Nodes of locks belong to the workers who make them. So that the operator may break locks, and the users",
            "# may take each other's, write into each worker's URL: acl=SCHEME:ID:cdrwa for each of them.",
            *_script(hosts, [*_parents(layout.base), *lines]),
        ]
    )


def _script(hosts: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"zkCli.sh -server {hosts} <<POLICY"
    yield "addauth digest $OPERATOR"
    # The shell would replace what these characters begin.
    yield from (re.sub(r"([\\$`])", r"\\\1", line) for line in lines)
    yield "quit"
    yield "POLICY"


def _parents(base: str) -> Iterator[str]:
    parts = base.split("/")
    for length in range(2, len(parts)):
        yield f'create {"/".join(parts[:length])} ""'


def _node(path: str, acl: str, value: str = "") -> Iterator[str]:
    # A node is made with its list, so that nobody makes anything below it before. Of one that exists, `create` says so,
    # and changes nothing.
    data = f"'{value}'" if value else '""'
    yield f"create {path} {data} {acl}"
    yield f"setAcl {path} {acl}"


def _list(roles: Sequence[str], permissions: str) -> str:
    for role in roles:
        if not _IDENTITY.fullmatch(role):
            raise ConfigError(
                f"{role!r} is no user of ZooKeeper: write its scheme and id, as digest:NAME:HASH. The hash is what "
                f"`kazoo.security.make_digest_acl_credential(name, password)` returns"
            )
    return ",".join([_OPERATOR, *(f"{role}:{permissions}" for role in roles)])
