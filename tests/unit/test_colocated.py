"""Guards whose URL names their locks: how the URL is parsed, and which keys they remember."""

import pytest

from fencelock import ConfigError, WrongLockError
from fencelock.stores.quorum import colocated as beside
from fencelock.stores.quorum.colocated import RememberedKeys, check_source, split_locks
from fencelock.stores.registry import guard_store
from tests.support.guards import sequencer


@pytest.mark.parametrize(
    ("url", "place", "locks"),
    [
        ("etcd://h/app", "etcd://h/app", None),
        ("etcd://h/app?locks=l", "etcd://h/app", "l"),
        ("etcd://h/app?ca=f&locks=l/m&cert=c&key=k", "etcd://h/app?ca=f&cert=c&key=k", "l/m"),
        ("etcd://h/app?locks=", "etcd://h/app", ""),
        ("etcd://h/app?ca=locks", "etcd://h/app?ca=locks", None),
        ("etcd://u:locks=p@h/app", "etcd://u:locks=p@h/app", None),
        ("etcd://h/app?locks=a&locks=b", "etcd://h/app", "b"),
    ],
)
def test_a_url_says_where_the_locks_are(url: str, place: str, locks: str | None) -> None:
    assert split_locks(url) == (place, locks)


@pytest.mark.parametrize("scheme", ["etcd", "zookeeper"])
def test_two_guards_of_one_place_are_of_one_place_wherever_their_locks_are(scheme: str) -> None:
    assert guard_store(f"{scheme}://h/app?locks=l").url == guard_store(f"{scheme}://h/app").url
    with pytest.raises(ConfigError, match="'lock'"):
        guard_store(f"{scheme}://h/app?lock=l")


def test_g5_only_a_lock_of_the_source_that_is_there_is_taken() -> None:
    check_source(sequencer(5), "source", "there")
    with pytest.raises(
        WrongLockError, match=r"is of source source, .* its locks are at there, where source another is"
    ):
        check_source(sequencer(5), "another", "there")


def test_what_was_found_is_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "MAX_REMEMBERED", 2)
    found: RememberedKeys[str] = RememberedKeys()
    for token in (1, 2, 2):
        found.remember(sequencer(token), f"key {token}")
    assert [found.of(sequencer(token)) for token in (1, 2, 3)] == ["key 1", "key 2", None]
    found.remember(sequencer(3), "key 3")
    assert [found.of(sequencer(token)) for token in (1, 2, 3)] == [None, None, "key 3"]
