"""What in an etcd source's set-up would break the promise, for `fencelock doctor`."""

from typing import TYPE_CHECKING

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.protocol.generators import run_generator
from fencelock.protocol.source_requests import ReadSource
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import STATUS, EtcdClient
from fencelock.stores.etcd.source.admin import UNBLOCKING, find_blocked

if TYPE_CHECKING:
    from fencelock.stores.etcd.source.store import EtcdSource

REQUEST_TIMEOUT_S = 5.0
OLDEST = (3, 4)


def examine(store: "EtcdSource") -> list[Finding]:
    """Return what is wrong with the members that the URL names, with the source's record, and in its queues."""
    connection = store.connect(request_timeout_s=REQUEST_TIMEOUT_S)
    try:
        connection.perform(ReadSource())
        blocked: list[tuple[str, str]] = run_generator(find_blocked(store.state), connection.send)
    except FencelockError as error:
        return [Finding("source-refused", str(error), "do what the message says, then run doctor again")]
    return [*(_blocked(*one) for one in blocked), *_members(store)]


def _blocked(lock: str, what: str) -> Finding:
    message = f"nobody can get lock {lock!r}: first in its queue stands {what}"
    return Finding("blocked-queue", message, UNBLOCKING)


def _members(store: "EtcdSource") -> list[Finding]:
    findings, clusters = [], set()
    for endpoint in store.info.endpoints:
        alone = store.info._replace(endpoints=(endpoint,), url=f"etcd://{endpoint}")
        try:
            status = EtcdClient(alone).call(STATUS, wire.StatusRequest(), REQUEST_TIMEOUT_S)
        except FencelockError as error:
            findings.append(_unreachable(endpoint, error))
            continue
        clusters.add(status.header.cluster_id)
        if tuple(map(int, status.version.split(".")[:2])) < OLDEST:
            findings.append(_too_old(endpoint, status.version))
    if len(clusters) > 1:
        message = f"{store.url} names members of {len(clusters)} clusters, whose revisions cannot be compared"
        findings.append(Finding("two-clusters", message, "name the members of one cluster"))
    return findings


def _unreachable(endpoint: str, error: FencelockError) -> Finding:
    message = f"member {endpoint} does not answer ({error}): when another one fails there is one less to go to"
    return Finding("member-unreachable", message, "start it, or take it out of the URL")


def _too_old(endpoint: str, version: str) -> Finding:
    message = f"member {endpoint} runs etcd {version}; fencelock relies on watches and transactions of etcd 3.4"
    return Finding("etcd-too-old", message, "upgrade it to etcd 3.4 or newer")
