"""`python -m fencelock_lab.campaigns`: how it shares its time, which exit code it has, and what its page says."""

from pathlib import Path
from typing import Any

import pytest

from fencelock.errors import SourceError
from fencelock_lab.campaigns import __main__ as program
from fencelock_lab.campaigns.results import CampaignReport, CampaignRun, read, write
from fencelock_lab.campaigns.schedules import SCHEDULES, STORES, CampaignOutcome, CampaignSchedule
from fencelock_lab.campaigns.verdict import judge
from fencelock_lab.campaigns.verified_page import page, version_of
from tests.lab.campaigns.planted import Script, two_tenures
from tests.lab.campaigns.test_check_command import busy

SHORT = CampaignSchedule("short", STORES, duration=1.0)
LONG = CampaignSchedule("long", STORES, duration=50.0)


def outcome(script: Script, schedule: CampaignSchedule = SHORT) -> CampaignOutcome:
    history = script.history()
    return CampaignOutcome(schedule, 7, judge(history), history)


class Clock:
    """Stands still but for the runs, each of which takes what the schedule says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, result: Any = None) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        self.result = result
        monkeypatch.setattr(program.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(program, "run_schedule", self.run)

    def run(self, schedule: CampaignSchedule, history: Path, **more: Any) -> CampaignOutcome:
        self.now += schedule.duration
        self.ran.append(schedule.name)
        more["started"]("sqlite:///" + str(history.with_name("app.db")))
        history.write_text("")
        if isinstance(self.result, Exception):
            raise self.result
        return outcome(self.result or busy(), schedule)


def test_time_is_shared_in_turns_the_shortest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    runs = program.Runs()
    program.share(runs, [LONG, SHORT], 2.0)
    assert clock.ran[:4] == ["short", "long", "short", "long"]
    assert clock.now <= 120.0
    assert set(clock.ran[4:]) == {"short"}


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock(monkeypatch)
    runs = program.Runs()
    program.share(runs, [LONG, SHORT], 0.5)
    assert runs.report.missing["long"] == "was not run, it would take 65 s"
    assert "long" not in clock.ran
    assert "long: not run, it would take 65 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("result", "code", "told"),
    [
        (None, 0, "short: clean (seed 7"),
        (busy(freezes=0), 2, "too little"),
        (two_tenures().final(("a", 1, 10)), 1, "lost-write"),
        (SourceError("etcd is not installed"), 69, "could not be carried out: etcd is not installed"),
    ],
)
def test_the_worst_run_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], result: Any, code: int, told: str
) -> None:
    clock = Clock(monkeypatch)
    runs = program.Runs()
    runs.run(SHORT)
    clock.result = result
    runs.run(SHORT)
    assert runs.code == code
    out = capsys.readouterr().out
    assert told in out
    for line in out.splitlines():
        if line.startswith("the history is in "):
            Path(line.removeprefix("the history is in ")).unlink()


def test_any_error_of_one_schedule_leaves_the_others_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch, KeyError("leader"))
    runs = program.Runs(file=tmp_path / "found.json")
    program.run_once(runs, [SCHEDULES["postgres"]], 1.0)
    clock.result = None
    program.run_once(runs, [SCHEDULES["sqlite"]], 1.0)
    assert runs.code == 69
    text = (tmp_path / "found.md").read_text()
    assert "- `postgres` could not be carried out: KeyError: 'leader'" in text
    assert "- `mariadb` has not run yet" in text
    assert "- `sqlite`" not in text
    assert "| verdict of each run | clean |" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json", "found.md"]


def test_a_schedule_runs_again_if_too_little_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "set_aside", lambda path: path)
    clock = Clock(monkeypatch, busy(freezes=0))
    runs = program.Runs()
    program.run_once(runs, [SHORT], 1.0)
    assert (len(clock.ran), runs.code) == (program.MAX_RUNS, 2)
    clock.result = None
    program.run_once(runs, [LONG], 1.0)
    assert len(clock.ran) == program.MAX_RUNS + 1


def test_a_run_that_was_repeated_counts_as_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "set_aside", lambda path: path)
    clock = Clock(monkeypatch, busy(freezes=0))
    run = clock.run

    def run_better(*words: Any, **more: Any) -> CampaignOutcome:
        done = run(*words, **more)
        clock.result = None
        return done

    monkeypatch.setattr(program, "run_schedule", run_better)
    runs = program.Runs()
    program.run_once(runs, [SHORT], 1.0)
    assert (len(clock.ran), runs.code) == (2, 0)
    assert runs.report.results["short"].verdicts == ("not enough", "clean")


def test_a_violation_is_kept_though_later_runs_are_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "set_aside", lambda path: path)
    clock = Clock(monkeypatch, two_tenures().final(("a", 1, 10)))
    runs = program.Runs()
    runs.run(SHORT)
    clock.result = None
    runs.run(SHORT)
    assert runs.report.results["short"].told["violations_in_all"] == 1


def test_a_version_that_cannot_be_read_fails_nothing() -> None:
    assert version_of("etcd://127.0.0.1:1/app") == "etcd, version unknown"


def test_a_violation_outranks_a_run_that_could_not_be_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "set_aside", lambda path: path)
    clock = Clock(monkeypatch, SourceError("gone"))
    runs = program.Runs()
    runs.run(SHORT)
    clock.result = two_tenures().final(("a", 1, 10))
    runs.run(SHORT)
    assert runs.code == 1


def reported(*outcomes: CampaignOutcome) -> CampaignReport:
    report = CampaignReport(
        CampaignRun("0123456789ab", "make verify VERIFY='--duration 1'", "2001-02-03 04:05 UTC", "a machine")
    )
    for one in outcomes:
        report.keep(one, "SQLite 3.40.1")
    return report


def test_the_page_says_of_what_when_how_and_over_how_many_faults() -> None:
    text = page(reported(outcome(busy(), SCHEDULES["sqlite"])))
    flat = " ".join(text.split())
    run = "| `0123456789ab` | 2001-02-03 04:05 UTC | `make verify VERIFY='--duration 1'` | a machine |"
    assert f"| `sqlite` {run}" in text
    assert "**In 1 campaign with 5 freezes of a holder past its ttl, 0 kills, 0 disturbances" in flat
    assert "the checkers found no violation.** The counts" in flat
    assert "| | SQLite 3.40.1 |" in text
    assert "| seed | 7 |" in text


def test_the_page_says_that_too_little_happened() -> None:
    text = page(reported(*[outcome(busy(freezes=0), SCHEDULES["sqlite"])] * 2))
    assert "found no violation.** Too little happened to prove anything in `sqlite`." in " ".join(text.split())
    assert "| verdict of each run | not enough, not enough |" in text


def test_the_page_says_which_promise_was_broken() -> None:
    text = page(reported(outcome(two_tenures().final(("a", 1, 10)), SCHEDULES["sqlite"])))
    assert "0 faults of servers: 1 violation.**" in " ".join(text.split())
    assert "\n## Violations\n\n- `sqlite`: lost-write at " in text


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    report = reported(outcome(busy(), SCHEDULES["sqlite"]))
    write(report, tmp_path / "found.json")
    assert page(read(tmp_path / "found.json")) == page(report)


def run_into(file: Path, name: str, commit: str) -> None:
    """Run one schedule, in a run of its own, and write what came out."""
    program.run_once(program.Runs(run=CampaignRun(commit), file=file), [SCHEDULES[name]], 1.0)


def test_a_run_of_one_schedule_leaves_the_others_as_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch)
    file = tmp_path / "found.json"
    run_into(file, "postgres", "first")
    run_into(file, "sqlite", "second")
    run_into(file, "postgres", "third")
    found = read(file)
    assert {name: one.run.commit for name, one in found.results.items()} == {"sqlite": "second", "postgres": "third"}
    assert list(found.results) == ["sqlite", "postgres"]
    assert found.results["postgres"].verdicts == ("clean",)
    assert set(found.missing) == set(SCHEDULES) - {"sqlite", "postgres"}
    clock.result = SourceError("postgres is not installed")
    run_into(file, "postgres", "fourth")
    found = read(file)
    assert list(found.results) == ["sqlite"]
    assert found.missing["postgres"] == "could not be carried out: postgres is not installed"
    assert set(found.missing) == set(SCHEDULES) - {"sqlite"}
