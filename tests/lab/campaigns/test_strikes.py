"""The schedule of what is done to servers: a function of the seed, with every fault in each round."""

from itertools import islice

from fencelock_lab.campaigns.history import SERVER_FAULTS, SERVER_KILL
from fencelock_lab.campaigns.strikes import ALL, LEADER, MAJORITY, Strike, strikes

COUNT = 60


def drawn(seed: int, faults: tuple[str, ...] = SERVER_FAULTS, ttl: float = 0.5) -> list[Strike]:
    return list(islice(strikes(seed, faults, ttl), COUNT))


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_each_round_has_every_fault_once() -> None:
    kinds = [strike.kind for strike in drawn(7)]
    size = len(SERVER_FAULTS)
    assert all({*kinds[at : at + size]} == {*SERVER_FAULTS} for at in range(0, COUNT, size))


def test_the_order_differs_from_round_to_round() -> None:
    kinds = [strike.kind for strike in drawn(7)]
    size = len(SERVER_FAULTS)
    assert len({tuple(kinds[at : at + size]) for at in range(0, COUNT, size)}) > 1


def test_every_server_is_hit_alone_and_all_together() -> None:
    victims = {tuple(strike.victims(3)) for strike in drawn(7, (SERVER_KILL,))}
    assert victims == {(0,), (1,), (2,), (0, 1, 2)}
    assert {tuple(strike.victims(1)) for strike in drawn(7)} == {(0,)}


def test_some_are_away_for_longer_than_a_lease_and_some_are_not() -> None:
    lengths = [strike.seconds for strike in drawn(7, ttl=2.0)]
    assert min(lengths) < 2.0 < max(lengths)


def test_without_a_fault_there_is_no_strike() -> None:
    assert drawn(7, ()) == []


def test_a_strike_may_aim_at_the_leader_at_a_majority_or_at_all() -> None:
    assert Strike(0.0, SERVER_KILL, aim=LEADER).victims(3, leader=2) == [2]
    assert Strike(0.0, SERVER_KILL, aim=MAJORITY).victims(3, leader=2) == [2, 0]
    assert sorted(Strike(0.0, SERVER_KILL, aim=ALL).victims(3, leader=2)) == [0, 1, 2]
