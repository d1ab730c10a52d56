"""NULL for each parameter of each routine that runs with its owner's rights: refused, or with a meaning of its own.

A condition on NULL neither holds nor fails: `IF a <> b` lets it pass.
"""

from itertools import groupby
from typing import Any

import pymysql
import pytest

from fencelock.model import digest_of_claim
from tests.sql.dialect import install, run
from tests.sql.guarded import Guarded
from tests.sql.mysql.dialect import MySQLDialect
from tests.sql.mysql.fix_mysql import Database
from tests.support.guards import LOCK, RESOURCE, claim_of, sequencer

pytestmark = pytest.mark.server_wide

CALLED = """
    SELECT SUBSTRING(made.ROUTINE_NAME, 11), SUBSTRING(parameter.PARAMETER_NAME, 3)
    FROM information_schema.ROUTINES AS made JOIN information_schema.PARAMETERS AS parameter
        ON parameter.SPECIFIC_SCHEMA = made.ROUTINE_SCHEMA AND parameter.SPECIFIC_NAME = made.ROUTINE_NAME
    WHERE made.ROUTINE_SCHEMA = DATABASE() AND made.SECURITY_TYPE = 'DEFINER'
    ORDER BY made.ROUTINE_NAME, parameter.ORDINAL_POSITION
"""
INNER = {
    *("bind", "find_bare", "join", "observe", "observe_write", "parse", "refuse", "refuse_write", "unmask"),
    *("check_change", "check_floor", "check_plausible", "check_presented", "check_right", "check_signature"),
    *("check_snapshots", "check_tables"),
}
"""What the others call, and triggers: they decide nothing for who calls them."""
SEALED = sequencer(5)
VALID: dict[str, Any] = {
    "after": b"",
    "asked_us": 1,
    "born_us": 9 * 10**15,
    "claim": claim_of(5),
    "closed": "",
    "digest": digest_of_claim("another"),
    "epoch": 1,
    "fresh": "fresh",
    "history_id": SEALED.history_id,
    "hold": "shared",
    "holder": "me",
    "key": "key",
    "kind": "stale",
    "leases": f'[["{LOCK.encode().hex()}", "{claim_of(5)}"]]',
    "limit_s": 10,
    "lock": LOCK.encode(),
    "mode": "try",
    "number": 1,
    "page": 9,
    "proof": SEALED.proof,
    "queue_limit": 9,
    "raised": "",
    "reason": "a test",
    "request_digest": "",
    "resource": RESOURCE,
    "resources": RESOURCE.encode().hex().upper(),
    "result": "done",
    "seen": 0,
    "sequencer": str(SEALED),
    "source_id": SEALED.source_id,
    "token": SEALED.token,
    "ttl_ms": 1000,
    "who": "me",
}
"""A value for each parameter, by its name without `p_`."""
MEANT = {
    "no limit": ("acquire.queue_limit", "inspect.page", "open.limit_s", "offer.limit_s", "begin.limit_s"),
    "the source decides which history it is": ("acquire.epoch", "acquire.history_id"),
    "held by nobody": ("check.lock", "check.history_id", "check.proof", "release.claim"),
    "no lease": ("renew.leases", "begin.digest", "read_marks.digest"),
    "a page, or one lock": ("inspect.lock", "inspect.after"),
    "not the current history": ("raise_epoch.old",),
    "shared": ("begin.hold", "read_marks.hold"),
    "no mask": ("begin.number", "draw_mask.number"),
    "no resource": (
        *("begin.resources", "check_marks.resources", "offer.resources", "open.resources", "read_marks.resources"),
        *("write_and_commit.raised", "write_and_commit.closed", "read_effect.resource", "record_refusal.resource"),
    ),
    "all": (
        *("show_marks.resource", "show_observations.resource", "show_rights.resource", "show_triggers.resource"),
        *("take_back.resources", "take_back_effect.resources"),
    ),
    "not the mark's lease": (
        *("offer.lock", "offer.token", "offer.proof", "offer.source_id", "offer.history_id"),
        *("open.lock", "open.token", "open.proof", "open.source_id", "open.history_id"),
    ),
    "it is not needed for nothing": ("write_and_commit.sequencer", "write_and_commit.claim"),
    "an intent": (
        *("finish_effect.result", "take_back_effect.result", "write_bound_effect.result", "write_effect.result"),
    ),
    "nothing is kept under it": ("read_effect.key",),
    "nothing is counted": ("record_refusal.kind",),
}
"""What is not refused, by what it means."""


def call(native: Any, name: str, parameters: list[str], null: str) -> None:
    """Call a routine with valid parameters, but for one."""
    values = {parameter: None if parameter == null else VALID.get(parameter) for parameter in parameters}
    if name == "raise_epoch" and null != "old":
        values["old"] = run(native, "SELECT history_id FROM fencelock_source")[0][0]
    if "effect" in name or name in {"take_back", "offer", "check_marks", "read_marks", "present"}:
        run(native, "START TRANSACTION")
        run(native, "CALL fencelock_present(%s, %s)", str(SEALED), RESOURCE)
    if name == "write_and_commit":
        run(native, "CALL fencelock_begin('', '', 'shared', 10, 1)")
    run(native, f"CALL fencelock_{name}({', '.join(['%s'] * len(values))})", *values.values())


def test_each_null_is_refused_or_means_something(sql: MySQLDialect, guarded: Guarded) -> None:
    """With the rights of an owner, who passes the checks of rights."""
    database, accepted = guarded.database, set()
    install(database.url())
    guarded.sealed(5)
    for name, rows in groupby(database.rows(CALLED), key=lambda row: row[0]):
        parameters = [parameter for _, parameter in rows]
        for null in parameters if name not in INNER else ():
            for table in "lock", "source_audit", "effect":
                database.rows("UPDATE fencelock_effect SET result = '', token = 1")
                database.rows(f"DELETE FROM fencelock_{table}")
            with sql.session(database.url()) as native:
                try:
                    call(native, name, parameters, null)
                except pymysql.Error:
                    continue
                accepted.add(f"{name}.{null}")
    assert accepted == {each for meant in MEANT.values() for each in meant}


@pytest.mark.parametrize(("digest", "mode"), [("NULL", "'try'"), ("'d'", "'now'"), ("'d'", "NULL")])
def test_what_nobody_could_hold_is_no_claim(
    sql: MySQLDialect, url: str, database: Database, digest: str, mode: str
) -> None:
    """A lock without a digest is free, and the next one to come was granted it, too."""
    acquire = "CALL fencelock_acquire('a', {}, 'me', 1000, 9000000000000000, {}, 9, 1, {})"
    with sql.session(url) as native:
        [(history_id,)] = [row[4:5] for row in run(native, "CALL fencelock_describe()")]
        run(native, acquire.format("'first'", "'try'", f"'{history_id}'"))
        run(native, "CALL fencelock_break('a', 'b', 'me', 'a test')")
        with pytest.raises(pymysql.Error, match="a claim needs"):
            run(native, acquire.format(digest, mode, f"'{history_id}'"))
        with pytest.raises(pymysql.Error, match="a claim needs"):
            run(native, "CALL fencelock_break('a', NULL, 'me', 'a test')")
