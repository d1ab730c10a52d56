"""No token in what a service logs or answers, whatever goes wrong (G12): `tests/shown_secrets.py` looks."""

import logging
from pathlib import Path

import pytest

import fencelock
from fencelock import OutcomeUnknownError
from tests.http.frameworks import Report
from tests.http.wire import Service, fields_of
from tests.shown_secrets import note_shown
from tests.support.guards import LOCK, raised_for, url_of


def test_no_answer_and_no_log_shows_a_token(
    service: Service, report: Report, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with fencelock.connect(url_of(tmp_path / "locks.db")) as source:
        lease = source.lock(LOCK).acquire()
        text = str(lease.sequencer)
        report.raised = raised_for(OutcomeUnknownError("no answer"), lease)
        wrong = (
            text,
            f'"{text[:-1]}"',
            f'"{text}x"',
            f'"{text}',
            f'"{text}", "{text}"',
            f'"{".".join(text.split(".")[::-1])}"',
        )
        replies = [service.send("PUT", "/report/7", [("Fencing-Token", value)]) for value in wrong]
        assert {reply.kind for reply in replies} == {"malformed-token"}
        replies += [service.call("PUT", path, lease) for path in ("/report/7", "/raise", "/unguarded")]
        lease.release()
        with source.lock(LOCK) as newer:
            replies += [service.call("GET", "/report", newer), service.call("PUT", "/report/7", lease)]
            replies.append(service.send("PUT", "/report/7", fields_of(lease) + fields_of(newer)))
        note_shown(*(reply.body.decode() for reply in replies), *(str(reply.fields) for reply in replies))
    assert replies[-2].kind == "stale-token"
    assert all(lease.sequencer.proof not in str(fields) for fields in report.seen)
