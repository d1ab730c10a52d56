"""NULL for each parameter of each function that runs with its owner's rights: refused, or with a meaning of its own.

A condition on NULL neither holds nor fails: `IF NOT (a = b)` lets it pass.
"""

from typing import Any

import psycopg
import pytest

from fencelock.model import digest_of_claim
from fencelock.stores.postgres.source.store import PostgresSource
from tests.sql.guarded import Guarded
from tests.sql.postgres.fix_postgres import Database
from tests.support.guards import LOCK, RESOURCE, claim_of, sequencer

pytestmark = pytest.mark.server_wide

CALLED = """
    SELECT proname, proargnames[:pronargs] FROM pg_proc
    WHERE pronamespace = 'fencelock'::regnamespace AND prosecdef AND prorettype <> 'trigger'::regtype
    AND proname <> ALL ('{secret,note_name}') ORDER BY 1
"""
"""What is called from outside, by holders or by operators."""
SEALED = sequencer(5)
VALID: dict[str, Any] = {
    "after": b"",
    "asked_us": 1,
    "born_us": 2**52,
    "channel": "channel",
    "claim": claim_of(5),
    "claims": [claim_of(5)],
    "digest": digest_of_claim("another"),
    "head_wait_ms": 1000,
    "history_id": SEALED.history_id,
    "hold": "shared",
    "holder": "me",
    "key": "key",
    "kind": "stale",
    "limit_ms": 1000,
    "lock": LOCK.encode(),
    "locks": [LOCK.encode()],
    "mode": "try",
    "name": LOCK,
    "page": 9,
    "proof": SEALED.proof,
    "queue_limit": 9,
    "reason": "a test",
    "request_digest": "",
    "resource": RESOURCE,
    "resources": [RESOURCE],
    "result": "done",
    "seen": 0,
    "sequencer": str(SEALED),
    "source_id": SEALED.source_id,
    "token": SEALED.token,
    "ttl_ms": 1000,
    "who": "me",
}
"""A value for each parameter, by its name without `p_`."""
ARRAYS = {"resources": "text[]", "locks": "bytea[]", "claims": "text[]"}
MEANT = {
    "acquire.channel": "nobody is notified",
    "acquire.head_wait_ms": "the head waits for the lease's end",
    "acquire.queue_limit": "no limit",
    "check_proof.lock": "held by nobody",
    "check_proof.history_id": "held by nobody",
    "check_proof.proof": "held by nobody",
    "close_marks.claim": "nobody's claim closes nothing",
    "inspect.lock": "a page",
    "inspect.after": "one lock",
    "inspect.page": "all that there are",
    "offer.lock": "not the mark's lease",
    "offer.token": "not the mark's lease",
    "offer.proof": "not the mark's lease",
    "offer.source_id": "not the mark's lease",
    "offer.history_id": "not the mark's lease",
    "offer.limit_ms": "the session's own limit",
    "raise_epoch.history_id": "not the current history",
    "raise_epoch.seen": "nothing was seen",
    "read_effect.resource": "nothing is kept, as the owner may see",
    "read_effect.key": "nothing is kept under it",
    "read_marks.digest": "nobody's lease",
    "read_marks.hold": "shared",
    "read_marks.limit_ms": "the session's own limit",
    "release.claim": "nobody's claim held nothing",
    "release.asked_us": "now",
    "renew.locks": "no lock",
    "renew.claims": "no lease",
    "reserve.who": "it writes no entry: tokens are reserved already",
    "show_marks.resource": "all",
    "show_observations.resource": "all",
    "write_effect.result": "an intent",
}
"""What is not refused, and what it means."""


def call(native: Any, name: str, parameters: list[str], null: str) -> None:
    """Call a function with valid parameters, but for one."""
    values = {parameter: None if parameter == null else VALID[parameter] for parameter in parameters}
    is_variadic = {"seal", "present", "close_marks", "raise_marks", "withdraw"}
    marks = [
        f"{'VARIADIC ' * (parameter == 'resources' and name in is_variadic)}%({parameter})s"
        + (f"::{ARRAYS[parameter]}" if parameter in ARRAYS else "")
        for parameter in parameters
    ]
    if name == "raise_epoch" and null != "history_id":
        [values["history_id"]] = native.execute("SELECT history_id FROM fencelock.describe()").fetchone()
    if "effect" in name or name == "confirm":
        native.execute("SELECT fencelock.present(%s, %s)", (str(SEALED), RESOURCE))
    native.execute(f"SELECT fencelock.{name}({', '.join(marks)})", values)


def test_each_null_is_refused_or_means_something(guarded: Guarded) -> None:
    """With the rights of an owner, who passes the checks of rights."""
    database = guarded.database
    PostgresSource(database.url()).install()
    guarded.sealed(5)
    accepted = set()
    with database.connect() as native:
        for name, named in database.rows(CALLED):
            parameters = [parameter.removeprefix("p_") for parameter in named or ()]
            for null in parameters:
                try:
                    with native.transaction(force_rollback=True):
                        call(native, name, parameters, null)
                except psycopg.Error:
                    continue
                accepted.add(f"{name}.{null}")
    assert accepted == MEANT.keys()


@pytest.mark.parametrize(("digest", "mode", "holder"), [("", "try", "me"), ("d", "Try", "me"), ("d", "try", "h" * 513)])
def test_what_nobody_could_hold_or_show_is_no_claim(database: Database, digest: str, mode: str, holder: str) -> None:
    PostgresSource(database.url()).install()
    acquire = "SELECT fencelock.acquire('a', %s, %s, 1000, fencelock.now_us(), %s, NULL, 1000, 9)"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="a claim needs"):
        database.rows(acquire, digest, holder, mode)


def test_t1_a_breakers_token_is_signed_for_no_lock_without_a_name(database: Database) -> None:
    """It would be signed for a lock that is not broken, and no entry would say so."""
    PostgresSource(database.url()).install()
    database.rows("SELECT fencelock.break_lease('a', 'a', 'd', 'me', 'a test')")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="would name another lock"):
        database.rows("SELECT fencelock.break_lease('b', NULL, 'd', 'me', 'a test')")
