"""What `doctor` finds out about the conditions of a server while many write at once: at a bucket in memory."""

import itertools
from threading import Barrier, Lock
from typing import Any

import pytest

from fencelock import SourceUnavailableError
from fencelock.stores.s3 import probe
from fencelock.stores.s3.probe import RACERS, ROUNDS, find_broken_races
from tests.s3.fake_bucket import LOST, FakeBucket


@pytest.fixture
def long_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no round out, however slow the machine is."""
    monkeypatch.setattr(probe, "TRIAL_S", 3600.0)


@pytest.mark.usefixtures("long_trial")
def test_a_server_that_compares_first_and_writes_later_is_found_by_the_doctor() -> None:
    class Slow(FakeBucket):
        """Writes once all who create an object have been compared."""

        def answer(self, call: Any) -> Any:
            if "IfNoneMatch" not in call.arguments:
                return super().answer(call)
            with one_at_a_time:
                answer = super().answer(call)
                del self.objects[call.arguments["Key"]]
            together.wait(30)
            self.objects[call.arguments["Key"]] = call.arguments["Body"]
            return answer

    together, one_at_a_time = Barrier(RACERS), Lock()
    bucket = Slow()
    problem = find_broken_races(bucket.run, "bucket", "")
    assert problem == f"in {ROUNDS} of {ROUNDS} rounds not exactly one of {RACERS} writers at once created an object"


@pytest.mark.usefixtures("long_trial")
def test_a_server_that_loses_turns_is_found_by_the_doctor() -> None:
    class Forgetful(FakeBucket):
        def _put_object(self, **arguments: Any) -> Any:
            lost = arguments["Body"] == b"3"
            before = dict(self.objects)
            answer = super()._put_object(**arguments)
            self.objects = before if lost and "ETag" in answer else self.objects
            return answer

    bucket = Forgetful()
    problem = find_broken_races(bucket.run, "bucket", "")
    assert "writes on the condition of what was read succeeded, and 2 are left" in (problem or "")


@pytest.mark.parametrize("is_done", [True, False])
def test_writes_without_an_answer_convict_no_server(is_done: bool) -> None:
    """As at a server that lets writers wait for each other until their time is over."""
    turn = itertools.count()

    class Slow(FakeBucket):
        def answer(self, call: Any) -> Any:
            is_first = call.arguments.get("Body") == b"0"
            if call.operation != "put_object" or is_first or next(turn) % 3:
                return super().answer(call)
            if is_done:
                super().answer(call)
            raise LOST

    assert find_broken_races(Slow().run, "bucket", "") is None


def test_a_server_that_lets_writers_wait_is_not_asked_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TRIAL_S", 0.0)
    bucket = FakeBucket()
    assert find_broken_races(bucket.run, "bucket", "") is None
    assert len([call for call in bucket.calls if call.operation == "put_object"]) == RACERS + 1


@pytest.mark.parametrize("store", ["guard_store", "source_store"])
def test_what_the_doctor_has_found_is_told_although_the_server_then_refuses(store: str) -> None:
    class Broken(FakeBucket):
        def _get_bucket_lifecycle_configuration(self, Bucket: str) -> Any:  # noqa: N803
            raise SourceUnavailableError("gone on purpose")

        def answer(self, call: Any) -> Any:
            is_number = call.arguments.get("Body", b"").isdigit()
            before = dict(self.objects)
            answer = super().answer(call)
            if is_number and "IfMatch" in call.arguments:
                self.objects = before
            return answer

    asked = getattr(Broken(), store)()
    found = asked.examine() if store == "guard_store" else asked.examine_location()
    assert [one.code for one in found] == ["conditions-broken", f"{store.partition('_')[0]}-refused"]
