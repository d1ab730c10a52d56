"""Blocks of the adapters that are interrupted anywhere, as by a signal handler: the next block of the thread works."""

from contextlib import suppress
from itertools import count

import pytest
from django.db import connection
from sqlalchemy import text

from fencelock.integrations.django import fenced
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from tests.integrations.alchemy import Stack
from tests.integrations.databases import GuardedDatabase
from tests.integrations.djangos import connected_to
from tests.support.guards import HandmadeLease

REGISTERING = ("/integrations/fencing.py", "/_api/guard_core.py")
"""The files that register a block with its lease and its thread."""
file_only = pytest.mark.parametrize("empty", ["sqlite"], indirect=True)


@file_only
def test_a_block_of_sqlalchemy_bars_no_later_one(guarded: GuardedDatabase) -> None:
    lease, guard = HandmadeLease(5), guarded.guard()
    stack = Stack("connection", guarded)
    for place in count():
        with suppress(*INTERRUPTS), interrupted_at(place, *REGISTERING) as interruption:
            stack.fenced(lease, lambda target: target.execute(text("SELECT 1")), guard=guard)
        assert lease.open_transactions == 0
        if not interruption.has_come:
            break
        stack.fenced(lease, lambda target: target.execute(text("SELECT 1")), guard=guard)
    stack.close()
    assert place > 20, "the block ran in these files"


@file_only
def test_a_block_of_django_bars_no_later_one(guarded: GuardedDatabase) -> None:
    lease, guard = HandmadeLease(5), guarded.guard()
    with connected_to(guarded):
        for place in count():
            with suppress(*INTERRUPTS), interrupted_at(place, *REGISTERING) as interruption, fenced(lease, guard=guard):
                connection.ensure_connection()
            assert lease.open_transactions == 0
            if not interruption.has_come:
                break
            with fenced(lease, guard=guard):
                connection.ensure_connection()
    assert place > 20, "the block ran in these files"
