"""Commands of other packages: they arrive by entry points, and a broken one is one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from fencelock.cli import plugin
from fencelock.cli.extensions import GROUP, LAB_COMMANDS
from tests.cli.program import Program, program

__all__ = ["program"]

Offer = Callable[..., None]

COUNT = """
import click
import fencelock
from fencelock.cli.plugin import NEGATIVE_RESULT, emit, json_option, source_option

@click.command()
@source_option
@json_option
def command(source, as_json):
    '''Count the locks.'''
    with fencelock.connect(source) as connected:
        found = len(list(connected.locks()))
    emit({"locks": found}, as_json, f"{found} locks")
    return 0 if found else NEGATIVE_RESULT
"""
BROKEN = {
    "missing": ("import fl_no_such_module", "ModuleNotFoundError: No module named 'fl_no_such_module'"),
    "attribute": ("", "has no attribute 'command'"),
    "syntax": ("def", "SyntaxError"),
    "exploding": ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    "plain": ("def command(): pass", "is not a click command but function"),
}
"""Modules whose `command` cannot be used, and what is said of each."""

_WITHOUT_PACKAGES = """
import importlib.metadata
importlib.metadata.entry_points = lambda **_: ()
from fencelock.cli import main
main()
"""
_WATCHED = """
import sys
from fencelock.cli.commands import execute
code = execute(sys.argv[1:])
assert "importlib.metadata" not in sys.modules
sys.exit(code)
"""


@pytest.fixture
def offer(program: Program) -> Offer:
    """Install packages that offer a command by an entry point, for the programs of this test."""

    def install(package: str, name: str, code: str) -> None:
        folder = program.folder / package
        (folder / f"{package}-1.0.dist-info").mkdir(parents=True)
        (folder / f"{package}-1.0.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n")
        (folder / f"{package}-1.0.dist-info" / "entry_points.txt").write_text(
            f"[{GROUP}]\n{name} = {package}:command\n"
        )
        (folder / f"{package}.py").write_text(code)
        paths = [str(folder), *filter(None, [program.environment.get("PYTHONPATH")])]
        program.environment["PYTHONPATH"] = os.pathsep.join(paths)

    return install


def run_code(program: Program, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python code with these arguments in the program's environment."""
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(
        command, env=program.environment, cwd=program.folder, capture_output=True, text=True, check=False
    )


def test_a_package_adds_a_command_with_the_options_and_exit_codes_of_ours(program: Program, offer: Offer) -> None:
    offer("fl_count", "count", COUNT)
    assert program("count").returncode == plugin.NEGATIVE_RESULT
    with program.source() as source, source.lock("a"):
        assert json.loads(program("count", "--json").stdout) == {"locks": 1}
    assert "Count the locks." in program("--help").stdout
    unavailable = program("count", "--source", "gopher://x", "--json")
    assert unavailable.returncode == plugin.USAGE
    assert json.loads(unavailable.stderr)["error"]["type"] == "UnknownSchemeError"


def test_a_package_cannot_replace_a_command_of_ours(program: Program, offer: Offer) -> None:
    offer("fl_locks", "locks", "raise SystemExit('replaced')")
    assert program("locks").returncode == 0
    assert program("--help").stdout.count("\n  locks ") == 1


@pytest.mark.parametrize("kind", BROKEN)
def test_a_command_that_cannot_be_loaded_is_one_line(program: Program, offer: Offer, kind: str) -> None:
    code, reason = BROKEN[kind]
    offer("fl_broken", "broken", code)
    for words in (["broken"], ["broken", "--help"], ["broken", "--anything", "else"]):
        done = program(*words)
        assert (done.returncode, done.stdout) == (plugin.USAGE, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("fencelock: `fencelock broken` is offered by 'fl_broken:command', which ")
        assert reason in line


def test_a_command_that_cannot_be_loaded_is_one_line_of_the_help(program: Program, offer: Offer) -> None:
    offer("fl_broken", "broken", "import fl_no_such_module")
    done = program("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Cannot be loaded" in done.stdout
    assert "doctor" in done.stdout


def test_two_packages_that_offer_one_command_are_named(program: Program, offer: Offer) -> None:
    offer("fl_one", "count", COUNT)
    offer("fl_two", "count", COUNT)
    done = program("count")
    assert done.returncode == plugin.USAGE
    assert "(fl_one:command, fl_two:command): uninstall all but one" in done.stderr
    assert program("--help").stdout.count("\n  count ") == 1


@pytest.mark.parametrize("name", LAB_COMMANDS)
def test_without_the_lab_its_commands_say_what_to_install(program: Program, name: str) -> None:
    for words in ([name], [name, "--help"], [name, "--guard", "sqlite:///app.db"]):
        done = run_code(program, _WITHOUT_PACKAGES, *words)
        assert (done.returncode, done.stdout) == (plugin.USAGE, "")
        (line,) = done.stderr.splitlines()
        assert (
            "fencelock-lab, which is not installed: from a clone of fencelock, run pip install '.[cli]' ./lab" in line
        )


def test_without_the_lab_the_help_lists_what_is_there(program: Program) -> None:
    done = run_code(program, _WITHOUT_PACKAGES, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n  run " in done.stdout
    assert not any(f"\n  {name} " in done.stdout for name in LAB_COMMANDS)


def test_with_the_lab_its_commands_are_listed(program: Program) -> None:
    shown = program("--help").stdout
    assert all(f"\n  {name} " in shown for name in LAB_COMMANDS)


@pytest.mark.parametrize("words", [("run", "x", "--", "true"), ("locks",), ("run", "--help")])
def test_a_command_of_ours_reads_no_entry_points(program: Program, words: tuple[str, ...]) -> None:
    done = run_code(program, _WATCHED, *words)
    assert done.returncode == 0, done.stderr


def test_reading_entry_points_is_noticed(program: Program) -> None:
    assert "AssertionError" in run_code(program, _WATCHED, "--help").stderr
