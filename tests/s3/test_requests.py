"""What the S3 guard makes of requests that are lost, late or doubled, at a bucket in memory."""

from collections.abc import Callable
from typing import Any

import pytest

from fencelock import GuardError, OutcomeUnknownError, SourceUnavailableError, StaleTokenError
from fencelock.clock import boottime_ms
from fencelock.protocol.guard_requests import PurgeEffects
from fencelock.stores.aws.clients import Call, Refusal
from fencelock.stores.s3.guard import block, codec, manifest
from tests.s3.fake_bucket import LOST, double, is_down, is_manifest, is_upload, lose_reply, lose_request
from tests.s3.scene import Scene, elsewhere, scene
from tests.support.guards import HandmadeLease

__all__ = ["scene"]

FEW = 8


def is_read(call: Call) -> bool:
    return call.operation == "get_object"


class HeldBack:
    """A call that is on its way: it arrives when the test says so, and by then nobody waits for its answer."""

    def __init__(self, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.meanwhile = meanwhile
        self.arrive: Callable[[], Any] = lambda: None

    def __call__(self, answer: Callable[[], Any]) -> Any:
        self.arrive = answer
        self.meanwhile()
        raise LOST


@pytest.mark.parametrize("fault", [lose_reply, lose_request, double])
@pytest.mark.parametrize("matches", [is_manifest, is_upload])
def test_a_block_whose_request_is_lost_or_doubled_is_written_once(scene: Scene, matches: Any, fault: Any) -> None:
    """A client that repeats by itself is told of a refusal, though its own bytes are there."""
    before = len(scene.manifest["commits"])
    scene.bucket.on(matches, fault)
    scene.write("mine")
    assert scene.value() == "mine"
    assert scene.values() == [b"mine"]
    assert len(scene.manifest["commits"]) == before + 1


@pytest.mark.parametrize("fault", [lose_reply, lose_request, double])
def test_a_seal_whose_request_is_lost_or_doubled_is_made_once(scene: Scene, fault: Any) -> None:
    scene.bucket.on(is_manifest, fault)
    guard = scene.guard()
    guard.seal(HandmadeLease(6))
    assert guard.mark().token == 6


def test_a_request_that_arrives_after_a_successors_seal_does_nothing(scene: Scene) -> None:
    held_back = HeldBack(meanwhile=scene.succeed)
    scene.bucket.on(is_manifest, held_back)
    with pytest.raises(StaleTokenError, match="its mark is 6"):
        scene.write("late")
    assert isinstance(held_back.arrive(), Refusal)
    assert scene.value() == "new"


def test_a_request_that_arrives_after_its_repetition_does_nothing(scene: Scene) -> None:
    held_back = HeldBack()
    scene.bucket.on(is_manifest, held_back)
    scene.write("mine")
    after = scene.manifest
    assert isinstance(held_back.arrive(), Refusal)
    scene.write("next")
    assert isinstance(held_back.arrive(), Refusal)
    assert scene.value() == "next"
    assert len(scene.manifest["commits"]) == len(after["commits"]) + 1


def test_a_manifest_never_comes_back_to_former_bytes(scene: Scene) -> None:
    """S3 compares bytes: a writer who has read the former ones would be admitted."""
    held_back = HeldBack()
    scene.bucket.on(is_manifest, held_back)
    seen = set()
    for _ in range(3):
        for value in ("x", "y"):
            scene.write(value)
            seen.add(scene.bucket.objects[scene.layout.manifest("reports")])
    assert len(seen) == 6
    assert isinstance(held_back.arrive(), Refusal)


def test_a_lost_answer_that_cannot_be_looked_for_is_unknown(scene: Scene) -> None:
    scene.bucket.on(lambda call: is_manifest(call) or is_read(call), None, lose_reply, is_down)
    with pytest.raises(OutcomeUnknownError, match="may have been done") as caught:
        scene.write("mine")
    assert not caught.value.definite
    assert scene.value() == "mine"


@pytest.fixture
def few_ids(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have manifests know the ids of few predecessors, and return of how many."""
    monkeypatch.setattr(manifest, "KEPT_COMMITS", FEW)
    return FEW


def overtake(scene: Scene, times: int) -> None:
    for number in range(times):
        scene.write_elsewhere(str(number), key="another")


def test_a_lost_answer_that_too_many_others_followed_is_unknown(scene: Scene, few_ids: int) -> None:
    """Nobody can tell any more which manifests came in between."""
    held_back = HeldBack(meanwhile=lambda: overtake(scene, few_ids))
    scene.bucket.on(is_manifest, held_back)
    with pytest.raises(OutcomeUnknownError):
        scene.write("mine")
    assert isinstance(held_back.arrive(), Refusal)


def test_what_was_overtaken_by_few_others_is_certain(scene: Scene, few_ids: int) -> None:
    scene.bucket.on(is_manifest, HeldBack(meanwhile=lambda: overtake(scene, few_ids - 2)))
    scene.write("mine")
    assert scene.value() == "mine"


def grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the manifest of a running block grow old, while the machine is suspended for example."""
    later_ms = boottime_ms() + codec.FRESH_MS + 1
    monkeypatch.setattr(codec, "boottime_ms", lambda: later_ms)


def test_a_long_block_that_many_others_have_overtaken_is_written(
    scene: Scene, few_ids: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scene.block() as txn:
        txn.put("k", "mine")
        grow_old(monkeypatch)
        overtake(scene, 2 * few_ids)
    assert scene.value() == "mine"


@pytest.mark.parametrize("is_old", [False, True], ids=["overtaken", "old"])
@pytest.mark.parametrize(
    ("limit", "value", "says"),
    [("MAX_KEYS", 4, "5 keys large"), ("MAX_MANIFEST_BYTES", 700, "needs a manifest of")],
)
def test_the_limits_hold_for_what_a_block_adds_to_what_others_have_written_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, says: str, is_old: bool
) -> None:
    def write() -> None:
        with scene.block() as txn:
            txn.put("k", "mine")
            for key in ("a", "b", "c", "d"):
                scene.write_elsewhere("theirs", key=key)
            monkeypatch.setattr(block, limit, value)
            if is_old:
                grow_old(monkeypatch)

    with pytest.raises(GuardError, match=says):
        write()
    assert sorted(scene.manifest["objects"]) == ["a", "b", "c", "d"]


def test_a_long_block_that_a_successor_has_overtaken_writes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late() -> None:
        with scene.block() as txn:
            txn.put("k", "late")
            grow_old(monkeypatch)
            scene.succeed()

    with pytest.raises(StaleTokenError):
        late()
    assert scene.value() == "new"


def test_a_server_that_is_down_leaves_nothing_in_doubt(scene: Scene) -> None:
    for matches in (is_upload, is_manifest):
        scene.bucket.on(matches, is_down)
        with pytest.raises(SourceUnavailableError) as caught:
            scene.write("mine")
        assert caught.value.definite
    assert scene.value() is None


def test_an_upload_that_is_never_confirmed_leaves_nothing_in_doubt(scene: Scene) -> None:
    scene.bucket.on(is_upload, *[lose_request] * 3)
    with pytest.raises(SourceUnavailableError, match="counts only once the manifest names it") as caught:
        scene.write("mine")
    assert caught.value.definite
    assert scene.value() is None


def test_an_upload_that_was_refused_is_never_named(scene: Scene) -> None:
    """It is looked for: a refusal may be the answer to a client's own repetition, or may not."""

    def refuse(_: Any) -> Refusal:
        return Refusal("ConditionalRequestConflict", "", {})

    scene.bucket.on(is_upload, refuse)
    scene.write("mine")
    assert scene.value() == "mine"
    scene.bucket.on(is_upload, *[refuse] * 3)
    with pytest.raises(SourceUnavailableError, match="refused to create"):
        scene.write("another")
    assert scene.value() == "mine"


def test_a_manifest_that_somebody_is_just_writing_is_tried_again(scene: Scene) -> None:
    scene.bucket.on(is_manifest, lambda _: Refusal("ConditionalRequestConflict", "", {}))
    scene.write("mine")
    assert scene.value() == "mine"


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_refused_manifest_whose_other_copy_is_under_way_is_not_called_unwritten(scene: Scene, refusals: int) -> None:
    """Something in between has sent it twice: one copy is refused because of the other, and then S3 is busy."""
    first = HeldBack()

    def refuse_second(answer: Callable[[], Any]) -> Refusal:
        first.arrive = answer
        return Refusal("ConditionalRequestConflict", "", {})

    steps = [refuse_second, *[lambda _: Refusal("ConditionalRequestConflict", "", {})] * (refusals - 1)]
    scene.bucket.on(is_manifest, *steps, *[is_down] * 4)
    with pytest.raises(OutcomeUnknownError):
        scene.write("mine")
    first.arrive()
    assert scene.value() == "mine"


def test_a_doubled_manifest_is_found_though_the_server_is_busy_afterwards(scene: Scene) -> None:
    scene.bucket.on(is_manifest, double, is_down)
    scene.write("mine")
    assert scene.value() == "mine"


def test_a_manifest_that_is_refused_for_no_reason_is_not_written(scene: Scene) -> None:
    scene.bucket.on(is_manifest, *[lambda _: Refusal("PreconditionFailed", "", {})] * 6)
    with pytest.raises(SourceUnavailableError, match="which nobody has changed") as caught:
        scene.write("mine")
    assert caught.value.definite


def test_a_server_that_compares_etags_without_quotation_marks_is_understood(scene: Scene) -> None:
    scene.bucket.knows_quotes = False
    scene.write("mine")
    scene.succeed()
    with pytest.raises(StaleTokenError):
        scene.write("late")
    assert scene.value() == "new"


# --- two blocks of one lease ------------------------------------------------------------------------------------------
def test_two_blocks_of_one_lease_that_touch_different_keys_both_count(scene: Scene) -> None:
    with scene.block() as first:
        first.put("a", "1")
        scene.bucket.on(is_manifest, lambda answer: (scene.write_elsewhere("2", key="b"), answer())[1])
    assert (scene.value("a"), scene.value("b")) == ("1", "2")


@pytest.mark.parametrize(
    "relies",
    [lambda txn: txn.get("k"), lambda txn: txn.keys(), lambda txn: txn.keys("k"), lambda txn: txn.url("k")],
)
def test_a_block_whose_reads_another_one_has_changed_writes_nothing(scene: Scene, relies: Any) -> None:
    def late() -> None:
        with scene.block() as txn:
            relies(txn)
            txn.put("a", "from what was read")
            scene.bucket.on(is_manifest, lambda answer: (scene.write_elsewhere("changed"), answer())[1])

    with pytest.raises(GuardError, match="which the block had read, has changed"):
        late()
    assert (scene.value("a"), scene.value()) == (None, "changed")


def test_a_block_of_a_closed_lease_writes_nothing(scene: Scene) -> None:
    def late() -> None:
        with scene.block() as txn:
            txn.put("k", "late")
            elsewhere(lambda: scene.guard().close(scene.lease))

    with pytest.raises(StaleTokenError, match="its own holder closed it"):
        late()
    assert scene.value() is None


def test_a_block_that_writes_nothing_asks_once(scene: Scene) -> None:
    before = len(scene.bucket.calls)
    guard = scene.guard()
    guard.seal(scene.lease)
    sealed = len(scene.bucket.calls) - before
    with guard.transaction(scene.lease) as txn:
        assert txn.keys() == []
    assert len(scene.bucket.calls) - before - sealed == 1


def do_jobs(scene: Scene, *keys: str) -> None:
    """Do jobs that are done once, under token 5, and have a successor seal."""
    for key in keys:
        with scene.guard().transaction(scene.lease, once=key) as txn:
            txn.put("k", key)
    scene.guard().seal(HandmadeLease(6))


def purge(scene: Scene) -> int:
    count: int = scene.bucket.run(scene.store.connect().codec.operations(PurgeEffects(0)))
    return count


def test_a_purge_forgets_all_effects_of_a_resource_in_one_change(scene: Scene) -> None:
    """The manifest may be large, and the effects may be thousands."""
    do_jobs(scene, "a", "b", "c")
    before = len(scene.bucket.calls)
    assert purge(scene) == 3
    calls = scene.bucket.calls[before:]
    assert scene.manifest["effects"] == {}
    assert (sum(map(is_read, calls)), sum(map(is_manifest, calls))) == (2, 1)
    assert purge(scene) == 0


def test_a_purge_that_another_write_has_overtaken_counts_what_it_forgets(scene: Scene) -> None:
    do_jobs(scene, "a", "b")

    def do_another(answer: Callable[[], Any]) -> Any:
        with scene.guard().transaction(HandmadeLease(6), once="c") as txn:
            txn.put("k", "c")
        return answer()

    scene.bucket.on(is_manifest, do_another)
    assert purge(scene) == 2
    assert list(scene.manifest["effects"]) == ["c"]
