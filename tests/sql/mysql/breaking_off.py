"""Routines that the server breaks off where a test wants it."""

import re

from tests.sql.mysql.fix_mysql import Database

_HANDLER = re.compile(r"DECLARE EXIT HANDLER FOR SQLEXCEPTION\s+BEGIN\s+ROLLBACK;\s+RESIGNAL;\s+END;")


def make_without_handler(database: Database, routine: str) -> None:
    """Make a routine anew without the handler that rolls back.

    A statement that is broken off while it waits for a lock calls the handler: what comes between two statements does
    not, and no test can stop there.
    """
    text, count = _HANDLER.subn("", routine)
    assert count == 1
    database.rows(f"DROP PROCEDURE {text.split()[2].partition('(')[0]}")
    database.rows(text)
