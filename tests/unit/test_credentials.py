"""Guards remember the tenures of sequencers, and refuse a thread that would wait for itself."""

import os
import threading

import pytest

from fencelock import ConfigError, GuardError
from fencelock._api.credentials import MAX_REMEMBERED_TENURES, MEMORY, TenureMemory, credential_of
from fencelock._api.guard_core import OpenBlock, check_free
from tests.support.guards import HandmadeLease, sequencer


def test_one_sequencer_has_one_memory() -> None:
    memory = TenureMemory()
    assert memory.kept(sequencer(5)) is memory.kept(sequencer(5))
    assert memory.kept(sequencer(5)) is not memory.kept(sequencer(6))
    assert memory.kept(sequencer(5)) is not memory.kept(sequencer(5, claim="another"))


def test_the_least_recently_used_memory_is_forgotten() -> None:
    memory = TenureMemory()
    memory.kept(sequencer(1)).has_read = memory.kept(sequencer(2)).has_read = True
    for token in range(3, MAX_REMEMBERED_TENURES + 1):
        memory.kept(sequencer(token))
    assert memory.kept(sequencer(1)).has_read
    memory.kept(sequencer(MAX_REMEMBERED_TENURES + 1))
    assert memory.kept(sequencer(1)).has_read
    assert not memory.kept(sequencer(2)).has_read


def test_a_tenure_is_remembered_as_long_as_somebody_keeps_it() -> None:
    memory = TenureMemory()
    tenure = memory.of(sequencer(1))
    tenure.has_read = True
    assert memory.kept(sequencer(1)) is tenure
    for token in range(2, MAX_REMEMBERED_TENURES + 2):
        memory.kept(sequencer(token))
    assert memory.kept(sequencer(1)) is tenure
    del tenure
    for token in range(2, MAX_REMEMBERED_TENURES + 2):
        memory.kept(sequencer(token))
    assert not memory.kept(sequencer(1)).has_read


def test_a_lease_is_its_own_credential() -> None:
    lease = HandmadeLease(5)
    assert credential_of(lease) is lease


@pytest.mark.parametrize("lease", [None, "fl1.", 5, object()])
def test_an_object_without_a_sequencer_is_refused(lease: object) -> None:
    with pytest.raises(ConfigError, match=r"needs a lease.*sequencer\(\)"):
        credential_of(lease)


def test_a_usual_mistake_is_told() -> None:
    with pytest.raises(ConfigError, match=r"not None, which acquire\(\) returns when it has not obtained the lock"):
        credential_of(None)
    forgotten = forget_to_await()
    with pytest.raises(ConfigError, match="not a coroutine: await forget_to_await"):
        credential_of(forgotten)
    forgotten.close()


async def forget_to_await() -> None: ...


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_remembers_a_copy_and_can_use_it() -> None:
    tenure = MEMORY.kept(sequencer(5, claim="forked"))
    tenure.has_read = True
    with MEMORY._lock:  # As if another thread were inside at the fork.
        child = os.fork()
        if child == 0:
            os._exit(0 if MEMORY.kept(sequencer(5, claim="forked")).has_read else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_thread_conflicts_with_whatever_is_open_in_it() -> None:
    task = object()
    open_block = OpenBlock("here")
    open_block.begin(task)
    with pytest.raises(GuardError, match="this thread has a guarded transaction open on here"):
        check_free("here")
    with pytest.raises(GuardError, match="this task has"):
        check_free("here", task)
    check_free("here", object())
    check_free("elsewhere")
    open_block.end()
    check_free("here")


def test_another_thread_does_not_conflict() -> None:
    open_block = OpenBlock("here")
    open_block.begin()
    thread = threading.Thread(target=check_free, args=("here",))
    thread.start()
    thread.join()
    open_block.end()
