"""Recordings: merged in the order of their times, and a line that was broken off is left out."""

import json
from pathlib import Path

from fencelock_lab.campaigns.history import read_history
from fencelock_lab.campaigns.recorder import Recorder, merged


def test_recordings_are_merged_by_time(tmp_path: Path) -> None:
    begin = Recorder(tmp_path / "a", "verify")
    begin.write("info", "begin", format=1, ttl=1.0, resources={"r": "l"})
    recorders = [Recorder(tmp_path / name, name) for name in "bcd"]
    for _ in range(20):
        for one in recorders:
            one.invoke("read", resource="r", token="1")
            one.write("ok", "read", resource="r", token="1", position=0)
    lines = list(merged(sorted(tmp_path.iterdir())))
    assert len(lines) == 121
    times = [json.loads(line)["time"] for line in lines]
    assert times == sorted(times)
    assert len(read_history(lines).operations) == 60


def test_a_line_that_was_broken_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b'{"time": 1, "f": 0}\n{"time": 2, "f": 0}\n{"tim')
    assert list(merged([path])) == [b'{"time": 1, "f": 0}\n', b'{"time": 2, "f": 0}\n']


def test_a_recording_is_its_owners_alone(tmp_path: Path) -> None:
    Recorder(tmp_path / "a", "1").close()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
