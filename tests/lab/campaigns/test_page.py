"""The page: what it is made of, that nothing in a history becomes markup, and that a real browser draws it."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from fencelock_lab.campaigns.page import page_data, write_page
from fencelock_lab.campaigns.verdict import judge
from tests.lab.campaigns.planted import Script, stale_writer, two_tenures
from tests.support.helpers import DEADLINE_S
from tests.support.programs import need

HOSTILE = "</script><img src=x onerror=alert(1)>"


def broken(end: float = 5.0) -> Script:
    script = stale_writer().write("1", 2.9, 3.0, 10, "a", 1).write("2", 3.1, 3.2, 11, "b", 1)
    script.event(3.3, "partition", victim="2", side="source", seconds=0.5).event(4.0, "kill", victim="2")
    return script.final(("a", 1, 10), ("b", 1, 11), counter=1, at=end)


def page_of(script: Script, folder: Path) -> Path:
    path = folder / "page.html"
    history = script.history()
    write_page(path, history, judge(history))
    return path


def test_everything_that_happened_is_drawn() -> None:
    history = broken().history()
    data = page_data(history, judge(history))
    assert data["lanes"] == ["1", "2"]
    assert [(lane, token) for lane, _, _, token, *_ in data["leases"]] == [(0, "10"), (1, "11")]
    assert data["frozen"] == [(0, 0.25, 1.9)]
    assert data["disturbed"] == [(1, 2.3, 2.8, "partition of the source"), (1, 3.0, 3.0, "kill")]
    assert [(row[0], row[3], row[4]) for row in data["operations"]] == [
        (0, "read", "10"),
        (1, "read", "11"),
        (0, "ok", "10"),
        (1, "ok", "11"),
    ]
    assert sum(data["figures"]["writes"]) > 0
    assert data["end"] == 4.0


def marked(script: Script) -> list[str]:
    """Return what the page shows as a broken promise: texts of operations, and tokens of leases."""
    history = script.history()
    data = page_data(history, judge(history))
    return [row[5] for row in data["operations"] if row[7]] + [row[3] for row in data["leases"] if row[5]]


def test_what_broke_a_promise_is_marked_and_nothing_else() -> None:
    assert marked(broken()) == ["write a", "write b"]
    assert marked(two_tenures().final(("a", 1, 10), ("b", 2, 11))) == []
    overlap = Script().acquire("1", 1.0, 1.1, 10, until=2.0).acquire("2", 1.5, 1.9, 11, until=2.9)
    assert marked(overlap) == ["11"]


def test_a_figure_has_a_second_at_least_in_each_piece() -> None:
    history = two_tenures().final(at=3.5).history()
    assert page_data(history, judge(history))["figures"]["width"] == 1.0
    history = two_tenures().final(at=2401.0).history()
    figures = page_data(history, judge(history))["figures"]
    assert (figures["width"], len(figures["writes"])) == (10.0, 241)


def test_outcomes_are_told_apart() -> None:
    script = (
        Script().write("1", 1.0, 1.1, 1, "a", 1, outcome="fail", error="StaleTokenError").write("2", 2, None, 2, "b", 1)
    )
    history = script.history()
    rows = page_data(history, judge(history))["operations"]
    assert [(row[3], row[5]) for row in rows] == [("refused", "write a: StaleTokenError"), ("unknown", "write b")]


def test_lives_of_one_worker_share_a_lane() -> None:
    history = Script().acquire("3.0", 1, 2, 1).acquire("3.1", 3, 4, 2).acquire("10.0", 5, 6, 3).history()
    assert page_data(history, judge(history))["lanes"] == ["3", "10"]


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    text = page_of(two_tenures(), tmp_path).read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|src=|href=|@import|url\(", text)


def test_nothing_in_a_history_becomes_markup(tmp_path: Path) -> None:
    text = page_of(two_tenures().write(HOSTILE, 3, 4, 12, HOSTILE, 3).final(("a", 1, 10)), tmp_path).read_text()
    assert HOSTILE not in text
    assert text.count("</script>") == 2
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    assert HOSTILE in data["lanes"]


def dom_of(page: Path) -> str:
    """Return the page's elements once a browser has run its script; a script's error fails the test."""
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    command = [need("chromium"), *words, f"--user-data-dir={page.parent / 'browser'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("tenures", [0, pytest.param(12_500, marks=pytest.mark.campaign)])
def test_a_browser_draws_it(tmp_path: Path, tenures: int) -> None:
    script = broken(end=90.0 if tenures else 5.0)
    for number in range(tenures):
        at, process = 10 + number / 1000, str(number % 7)
        script.acquire(process, at, at + 0.0002, 100 + number).read(process, at + 0.0003, at + 0.0004, 100 + number, 0)
        script.write(process, at + 0.0005, at + 0.0006, 100 + number, f"n{number}", number + 1)
        script.release(process, at + 0.0007, at + 0.0008, 100 + number)
    dom = dom_of(page_of(script, tmp_path))
    assert re.search(r'id="verdict" class="code1">VIOLATION<', dom)
    assert len(re.findall(r"<tr>", dom)) > 5
    assert "<td>0.250 s after the start</td><td>1</td><td>is frozen</td>" in dom
    assert "broke a promise, with its token" in dom
    height = (2 if not tenures else 7) * 22 + 22
    assert f"height: {height}px" in dom
