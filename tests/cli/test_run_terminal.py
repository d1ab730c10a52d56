"""`fencelock run` at a terminal: CMD has it as if `run` were not there, and the shell gets it back."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import PROGRAM, Program, program
from tests.cli.pseudo_terminal import PROMPT, Terminal
from tests.support.helpers import wait_until
from tests.support.programs import need

__all__ = ["program"]
pytestmark = pytest.mark.process

RUN = f"{' '.join(PROGRAM)} run x --ttl 60 --"
# A shell that is just forking may lose a Ctrl-C and cannot be stopped, with or without `run`: where CMD gets a key,
# it forks nothing.
# What CMD prints is put together by it, so that the echo of the command line is not taken for it.
READY = "echo re''ady; "


@pytest.fixture
def terminal(program: Program) -> Iterator[Terminal]:
    """Yield a terminal with a shell that has job control."""
    need("bash")
    made = Terminal(program.folder, program.environment)
    yield made
    made.close()


def test_cmd_reads_from_the_terminal(terminal: Terminal) -> None:
    terminal.type(f"""{RUN} sh -c '{READY} read line; echo "heard: $line"'""")
    terminal.expect("ready\n")
    terminal.type("hello")
    terminal.expect("heard: hello\n")
    terminal.expect(PROMPT)
    assert terminal.foreground == terminal.process.pid


def test_cmd_is_in_the_foreground_and_run_is_not(terminal: Terminal) -> None:
    terminal.type(f"{RUN} sh -c '{READY} read line'")
    terminal.expect("ready\n")
    assert terminal.foreground != terminal.process.pid
    assert Path(f"/proc/{terminal.foreground}/comm").read_text() == "sh\n"
    terminal.type("")
    terminal.expect(PROMPT)


def test_ctrl_c_ends_cmd_and_exits_with_130(terminal: Terminal) -> None:
    terminal.type(f"{RUN} sh -c '{READY} exec sleep 60'")
    terminal.expect("ready\n")
    terminal.press("C")
    terminal.expect(PROMPT)
    assert terminal.run("echo $?") == "130\n"


def test_ctrl_c_reaches_cmd_once(program: Program) -> None:
    count = "import signal, time; n = []; signal.signal(2, lambda *a: n.append(1)); print('re' + 'ady', flush=True)"
    wait = "\nwhile not n: time.sleep(0.01)\ntime.sleep(0.5); print(len(n), chr(33))"
    program.environment["COUNT"] = count + wait
    terminal = Terminal(program.folder, program.environment)
    terminal.type(f'{RUN} {sys.executable} -c "$COUNT"')
    terminal.expect("ready\n")
    terminal.press("C")
    assert terminal.expect(r"(\d+) !\n")[1] == "1"
    terminal.close()


def test_ctrl_c_while_waiting_leaves_the_queue(program: Program, terminal: Terminal) -> None:
    with program.source() as source, source.lock("x"):
        terminal.type(f"{RUN} touch ran")
        wait_until(lambda: source.info("x").waiters)
        terminal.press("C")
        terminal.expect(PROMPT)
        assert terminal.run("echo $?") == "130\n"
        assert source.info("x").waiters == ()


def test_ctrl_z_stops_the_job_and_fg_continues_it(terminal: Terminal) -> None:
    terminal.type(f"""{RUN} sh -c '{READY} read line; echo "heard: $line"'""")
    terminal.expect("ready\n")
    terminal.press("Z")
    terminal.expect(r"\[1\]\+ +Stopped")
    terminal.expect(PROMPT)
    assert terminal.foreground == terminal.process.pid
    terminal.type("fg")
    wait_until(lambda: Path(f"/proc/{terminal.foreground}/comm").read_text() == "sh\n")
    terminal.type("again")
    terminal.expect("heard: again\n")
    terminal.expect(PROMPT)
    assert terminal.run("echo $?") == "0\n"


def test_ctrl_z_again_and_again(terminal: Terminal) -> None:
    terminal.type(f"{RUN} sh -c '{READY} read line'")
    terminal.expect("ready\n")
    for _ in range(3):
        terminal.press("Z")
        terminal.expect("Stopped")
        terminal.expect(PROMPT)
        terminal.type("fg")
        wait_until(lambda: Path(f"/proc/{terminal.foreground}/comm").read_text() == "sh\n")
    terminal.type("")
    terminal.expect(PROMPT)


def test_bg_lets_cmd_continue_without_the_terminal(program: Program, terminal: Terminal) -> None:
    os.mkfifo(program.folder / "go")
    terminal.type(f"{RUN} sh -c '{READY} read line < go; : > went-on'")
    terminal.expect("ready\n")
    terminal.press("Z")
    terminal.expect(PROMPT)
    terminal.run("bg")
    terminal.run("echo > go")
    wait_until((program.folder / "went-on").exists)
    terminal.run("wait")


def test_a_background_cmd_that_reads_stops_the_job_until_fg(terminal: Terminal) -> None:
    terminal.type(f"""{RUN} sh -c 'read line; echo "heard: $line"' &""")
    terminal.expect(PROMPT)
    wait_until(lambda: "Stopped" in terminal.run("jobs"))
    terminal.type("fg")
    wait_until(lambda: Path(f"/proc/{terminal.foreground}/comm").read_text() == "sh\n")
    terminal.type("late")
    terminal.expect("heard: late\n")
    terminal.expect(PROMPT)


def test_a_job_stopped_for_longer_than_its_ttl_is_over(program: Program, terminal: Terminal) -> None:
    terminal.type(f"{RUN.replace('60', '2')} sh -c '{READY} read line'")
    terminal.expect("ready\n")
    terminal.press("Z")
    terminal.expect(PROMPT)
    with program.source() as source, source.lock("x"):
        terminal.type("fg")
        terminal.expect("the lease was lost")
        terminal.expect(PROMPT)
    assert terminal.run("echo $?") == "76\n"


def test_another_part_of_the_pipeline_may_read_the_terminal(terminal: Terminal) -> None:
    terminal.type(f"cat | {RUN} sh -c '{READY} cat >&2' 2>&1 | cat")
    terminal.expect("ready\n")
    terminal.type("typed")
    terminal.expect("typed\n.*typed\n")
    terminal.press("D")
    terminal.expect(PROMPT)


def test_cmd_in_a_pipeline_gets_the_terminal_when_it_asks(terminal: Terminal) -> None:
    terminal.type(f"""{RUN} sh -c '{READY} read line < /dev/tty; echo "heard: $line"' | cat""")
    terminal.expect("ready\n")
    wait_until(lambda: Path(f"/proc/{terminal.foreground}/comm").read_text() == "sh\n")
    terminal.type("hello")
    terminal.expect("heard: hello\n")
    terminal.expect(PROMPT)


def test_ctrl_c_and_ctrl_z_reach_a_whole_pipeline(terminal: Terminal) -> None:
    terminal.type(f"cat | {RUN} sh -c '{READY} exec cat >&2' 2>&1 | cat")
    terminal.expect("ready\n")
    terminal.press("Z")
    terminal.expect("Stopped")
    terminal.expect(PROMPT)
    terminal.type("fg")
    terminal.expect("cat >&2.*\n")
    terminal.type("typed")
    terminal.expect("typed\n.*typed\n")
    terminal.press("C")
    terminal.expect(PROMPT)
    assert terminal.run("jobs") == ""


def test_modes_are_set_back_when_cmd_was_killed(terminal: Terminal) -> None:
    terminal.type(f"{RUN} sh -c 'stty -echo raw; kill -9 $$'")
    terminal.expect(PROMPT)
    assert terminal.echoes()
    assert terminal.run("echo $?") == "137\n"


def test_modes_that_cmd_leaves_on_purpose_stay(terminal: Terminal) -> None:
    terminal.type(f"{RUN} stty -echo")
    terminal.expect(PROMPT)
    assert not terminal.echoes()


def test_ctrl_z_without_job_control_does_nothing(program: Program) -> None:
    """`ssh -t host fencelock run …`: nobody could continue a stopped job, so it is not stopped."""
    words = ["run", "x", "--", "sh", "-c", "echo ready; read line; echo heard: $line"]
    terminal = Terminal(program.folder, program.environment, [*PROGRAM, *words])
    terminal.expect("ready\n")
    terminal.press("Z")
    terminal.type("hello")
    terminal.expect("heard: hello\n")
    assert terminal.process.wait() == 0
    terminal.close()


def test_a_hangup_ends_everything(program: Program) -> None:
    terminal = Terminal(
        program.folder, program.environment, [*PROGRAM, "run", "x", "--", "sh", "-c", "echo ready; cat"]
    )
    terminal.expect("ready\n")
    os.close(terminal.master)
    wait_until(lambda: program.left() == [])
    terminal.process.wait()
    assert not program.source().info("x").is_held
