"""A store whose marks only `protect` creates: a mark that is missing admits nobody, and a made-up one is rejected."""

import pytest

from fencelock import ConfigError, GuardError, SealLostError, UnsupportedError
from fencelock.testing.conformance import AsyncGuardConformance, GuardConformance, failure
from fencelock.testing.conformance.creating import NEW
from tests.conformance import optimistic_guard as of


class InProtectedTarget(of.InVersionedTarget):
    store_type = of.ProtectedGuard


class InLoneTarget(of.InVersionedTarget):
    store_type = of.LoneGuard
    codec_type = of.LoneCodec


class TestProtectedGuard(InProtectedTarget, GuardConformance):
    pass


class TestAsyncProtectedGuard(InProtectedTarget, AsyncGuardConformance):
    pass


class TestLoneGuard(InLoneTarget, GuardConformance):
    pass


class TestAsyncLoneGuard(InLoneTarget, AsyncGuardConformance):
    pass


class InProvingTarget(of.InVersionedTarget):
    store_type = of.ProvingGuard


class TestProvingGuard(InProvingTarget, GuardConformance):
    pass


class TestAsyncProvingGuard(InProvingTarget, AsyncGuardConformance):
    pass


LATE = "test_a_request_that_arrives_after_the_successors_seal_does_nothing"
BROKEN = [
    (of.ProtectedGuard, of.MissingMarksMadeUp, "test_a_resource_without_a_mark_refuses_every_lease"),
    (of.ProtectedGuard, of.MissingMarksMadeUp, "test_a_lost_mark_admits_nobody"),
    (of.ProtectedGuard, of.OperatorsIgnored, "test_protecting_creates_the_mark"),
    (of.ProtectedGuard, of.OperatorsAlwaysAtZero, "test_a_lost_mark_is_created_again_above_its_source"),
    (of.LoneGuard, of.VersionedCodec, "test_a_store_of_lone_resources_keeps_no_floors"),
    (of.DeclaringTooMuch, of.VersionedCodec, "test_a_store_is_what_it_declares"),
    (of.SealingToProve, of.VersionedCodec, "test_what_a_server_must_keep_is_kept_here"),
    (of.TrustingGuard, of.VersionedCodec, "test_a_careless_server_is_refused"),
    (of.RetryingGuard, of.VersionedCodec, "test_whatever_is_lost_what_is_told_is_true"),
    (of.BelievingGuard, of.VersionedCodec, "test_whatever_is_lost_what_is_told_is_true"),
    (of.OptimisticGuard, of.NothingComparedAtTheEnd, LATE),
    (of.OptimisticGuard, of.NothingComparedByASeal, LATE),
    (of.OptimisticGuard, of.NothingComparedAtTheEnd, "test_a_reply_that_was_held_back_says_what_was_then"),
    (of.OptimisticGuard, of.RefusalsIgnored, "test_a_reply_that_was_held_back_says_what_was_then"),
    (of.OptimisticGuard, of.FloorsNotCompared, "test_a_seal_that_arrives_after_a_purge_does_nothing"),
    (of.ContentGuard, of.VersionedCodec, "test_bytes_that_come_back_are_noticed"),
    (of.OptimisticGuard, of.AllWrittenBack, "test_two_blocks_of_one_lease_lose_nothing_of_each_other"),
]


@pytest.mark.parametrize(("store", "codec", "check"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_store_that_breaks_what_it_declares_is_rejected(store, codec, check):
    class Kit(of.InVersionedTarget, GuardConformance):
        store_type, codec_type = store, codec

    assert isinstance(failure(Kit, check), AssertionError)


def test_a_seal_that_creates_its_mark_is_rejected_where_only_protect_may():
    class Declared(InProtectedTarget, GuardConformance):
        """The flows are told by the capabilities; here the store says the one thing to them and another to the kit."""

        def unmarked_guard(self, *resources, **named):
            guard = super().unmarked_guard(*resources, **named)
            guard._core.scope.first_seal_creates = True
            return guard

    for name in ("test_a_resource_without_a_mark_refuses_every_lease", "test_a_lost_mark_admits_nobody"):
        assert isinstance(failure(Declared, name), AssertionError)


@pytest.fixture
def kit():
    checks = TestProtectedGuard()
    checks.setup_method()
    yield checks
    checks.teardown_method()


def entries(kit):
    """Return the audit."""
    target = kit.make_store(kit.url).target
    return [target.read(key).value.decode() for key in target.keys("audit")]


def test_g9_a_mark_that_was_protected_before_is_not_created_silently(kit):
    guard = kit.guard()
    kit.lose_mark("r")
    with pytest.raises(GuardError, match=r"resource 'r' at memory://\S+ was protected before.*source=…"):
        guard.protect()
    assert len(entries(kit)) == 1
    guard.protect(source=kit.source_at(7))
    assert kit.mark().token == 7


def test_protecting_leaves_an_audit_entry(kit):
    kit.unmarked_guard(NEW).protect()
    (entry,) = entries(kit)
    assert '"action":"protect"' in entry
    assert f'"resource":"{NEW}"' in entry
    assert "no source was named" in entry


def test_g9_the_holder_of_a_lost_mark_is_told_what_to_do(kit):
    guard, lease = kit.guard(), kit.sequencer(5)
    kit.write(guard, lease, "mine")
    kit.lose_mark("r")
    with pytest.raises(SealLostError, match=r"protect memory://\S+ --resource r --lock lock --source SOURCE.*raise-to"):
        kit.write(guard, lease, "late")


def test_a_purged_mark_admits_nobody_until_it_is_protected_again(kit):
    kit._seal(5)
    kit.purge(kit._old())
    with pytest.raises(GuardError, match="has no mark, so it refuses every token"):
        kit.seal(kit.unmarked_guard("r"), kit.sequencer(6))


@pytest.mark.parametrize("options", [{}, {"mode": "observe"}])
def test_tables_are_refused_with_what_to_do_instead(kit, options):
    with pytest.raises(UnsupportedError, match=r"has no triggers.*protect\(\) without a table binds resource 'r'"):
        kit.unmarked_guard("r").protect("red", **options)
    assert entries(kit) == []


def test_observing_a_resource_is_refused(kit):
    with pytest.raises(UnsupportedError, match="cannot refuse or count a write by itself"):
        kit.unmarked_guard("r").protect(mode="observe")


def test_where_a_seal_creates_the_mark_protect_says_so():
    class Seals(of.InVersionedTarget, GuardConformance):
        pass

    checks = Seals()
    checks.setup_method()
    for tables in ((), ("red",)):
        with pytest.raises(UnsupportedError, match="The first seal binds resource 'r' to lock 'lock'"):
            checks.guard().protect(*tables)
    checks.teardown_method()


def test_resources_that_one_step_cannot_write_have_no_common_guard():
    checks = TestLoneGuard()
    checks.setup_method()
    with pytest.raises(ConfigError, match=r"make one resource of 'r', 's'; or.*independent=True"):
        checks.unmarked_guard("r", "s")
    checks.teardown_method()


def test_a_callers_own_transaction_is_refused_where_none_stays_open(kit):
    guard, lease = kit.guard(), kit.sequencer(5)
    for refused in (
        lambda: guard.seal(lease, connection=object()),
        lambda: guard.check(lease, connection=object()),
        lambda: guard.protect(connection=object()),
    ):
        with pytest.raises(GuardError, match="has no transaction that stays open, so nothing can be checked inside"):
            refused()
