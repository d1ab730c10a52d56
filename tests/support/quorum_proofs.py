"""What a quorum store keeps of claims, says of proofs, and refuses: written once for etcd and ZooKeeper."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import Sequencer
from fencelock.errors import FencelockError, ImplausibleTokenError, UnsupportedError
from fencelock.model import LeaseCheck, digest_of_claim, draw_claim, one_way
from fencelock.protocol.guard_requests import ResourceReport
from fencelock.protocol.source_requests import Keys
from fencelock.stores.registry import source_store
from tests.cli.program import Program
from tests.support.guards import LOCK, RESOURCE, Blocking, HandmadeLease, HandmadeSource
from tests.support.helpers import DEADLINE_S, wait_until

DRAWERS = ("_drivers.sync", "_drivers.aio", "_api.source", "_api.aio_source")
BEYOND_EVERY_SOURCE = (2**63 - 1, 1_790_000_000_000_000_000)
"""The highest token, and a time in nanoseconds."""
ELECTION = 2**32
"""By so much ZooKeeper's transaction numbers grow with each election."""


def secrets_in(folder: Path, secrets: list[str]) -> set[str]:
    """Return which of these texts the files of a server contain, its logs of transactions above all."""
    found: set[str] = set()
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            content = path.read_bytes() if path.is_file() else b""
            found |= {secret for secret in secrets if secret.encode() in content}
    return found


class QuorumProofs:
    """A subclass has the fixture `face`: a guard in the same store as its lock."""

    hashing: str
    """Where the source's requests are hashed."""
    knows_last_token_of_a_free_lock: bool

    def data(self, face: Any) -> Path:
        """Return the folder in which the server keeps everything that it was told to write."""
        raise NotImplementedError

    @pytest.fixture
    def source(self, face: Any) -> Iterator[fencelock.Source]:
        source_store(face.source_url).install()
        with fencelock.connect(face.source_url) as source:
            yield source

    @pytest.fixture
    def drawn(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return the list to which every claim is added that is drawn from now on."""
        claims: list[str] = []

        def draw() -> str:
            claims.append(draw_claim())
            return claims[-1]

        for module in DRAWERS:
            monkeypatch.setattr(f"fencelock.{module}.draw_claim", draw)
        return claims

    # --- secrets ------------------------------------------------------------------------------------------------------
    def test_g12_nothing_that_is_stored_logged_or_shown_holds_a_claim_or_a_proof(
        self, face: Any, source: fencelock.Source, drawn: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        shown = self.live(face, source)
        asyncio.run(self.live_async(face))
        source.raise_epoch(reason="a test")
        source.purge()
        digests = {digest_of_claim(claim) for claim in drawn}
        assert len(drawn) >= 6
        assert secrets_in(self.data(face), sorted(digests)) == digests, "the files are those of this server"
        secrets = [secret for claim in drawn for secret in (claim, one_way(claim))]
        assert secrets_in(self.data(face), secrets) == set()
        assert [secret for secret in secrets if secret in caplog.text + shown] == []

    def test_a_claim_that_is_stored_is_found(
        self, face: Any, source: fencelock.Source, drawn: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control: a source that forgets to hash."""
        monkeypatch.setattr(f"{self.hashing}.hash_claims", lambda request: request)
        with source.lock(LOCK, ttl=face.ttl):
            pass
        assert secrets_in(self.data(face), drawn) == set(drawn)

    def live(self, face: Any, source: fencelock.Source) -> str:
        """Have leases wait, write, close, end and be broken; return what was shown of them."""
        lock = source.lock(LOCK, ttl=face.ttl, timeout=DEADLINE_S)
        first = lock.acquire()
        face.write(first, "first")
        source.check(first.sequencer)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(lock.acquire)
            wait_until(lambda: source.info(LOCK).waiters)
            face.guard().close(first)
            first.release()
            second = waiter.result()
        face.write(second.sequencer, "second")
        broken = source.break_lock(LOCK, reason="a test")
        face.guard().outrank(broken, reason="a test")
        with pytest.raises(FencelockError) as refused:
            face.write(second, "late")
        with suppress(FencelockError):
            second.release()
        return f"{refused.value} {source.info(LOCK)} {face.guard().mark()} {first!r} {second.sequencer!r} {broken!r}"

    async def live_async(self, face: Any) -> None:
        """Have a lease write, and another be broken, through the async source."""
        async with fencelock.aio.connect(face.source_url) as source:
            lock = source.lock(LOCK, ttl=face.ttl, timeout=DEADLINE_S)
            async with lock as lease:
                await source.check(lease.sequencer)
                await fencelock.aio.guard(face.url, resource=RESOURCE, lock=LOCK).close(lease)
            held = await lock.acquire()
            await source.break_lock(LOCK, reason="a test")
            with suppress(FencelockError):
                await held.release()

    # --- checks -------------------------------------------------------------------------------------------------------
    @pytest.fixture(params=["sync", "async"])
    def check(self, request: pytest.FixtureRequest, source: fencelock.Source, face: Any) -> Iterator[Any]:
        """Yield the check of a sequencer as another process makes it."""
        if request.param == "sync":
            with fencelock.connect(face.source_url) as other:
                yield other.check
            return
        with asyncio.Runner() as runner:
            elsewhere = fencelock.aio.connect(face.source_url)
            yield lambda sequencer: runner.run(elsewhere.check(sequencer))
            runner.run(elsewhere.close())

    def test_a_check_finds_the_holder_and_its_token(
        self, face: Any, source: fencelock.Source, check: Callable[[Sequencer], LeaseCheck]
    ) -> None:
        with source.lock(LOCK, ttl=face.ttl) as lease:
            found = check(lease.sequencer)
            assert (found.is_current, found.last_token) == (True, lease.token)
            assert found.remaining <= face.ttl
            self.check_vouched(face, found.remaining)
            own = source.check(lease.sequencer)
            assert face.ttl / 2 < own.remaining <= face.ttl

    def check_vouched(self, face: Any, remaining: float) -> None:
        """Check the time left that another process is told."""
        raise NotImplementedError

    @pytest.mark.parametrize("end", ["release", "break", "epoch"])
    def test_a_check_finds_that_a_lease_is_over(
        self, face: Any, source: fencelock.Source, check: Callable[[Sequencer], LeaseCheck], end: str
    ) -> None:
        lease = source.lock(LOCK, ttl=face.ttl).acquire()
        last = lease.token
        if end == "release":
            lease.release()
        elif end == "break":
            last = source.break_lock(LOCK, reason="a test").token
        else:
            source.raise_epoch(reason="a test")
        found = check(lease.sequencer)
        assert not found.is_current
        is_told = self.knows_last_token_of_a_free_lock and end != "epoch"
        assert found.last_token == (last if is_told else None)
        with source.lock(LOCK, ttl=face.ttl) as following:
            found = check(lease.sequencer)
            assert (found.is_current, found.last_token) == (False, following.token)

    def test_a_check_asks_for_the_holders_own_proof(
        self,
        face: Any,
        source: fencelock.Source,
        drawn: list[str],
        check: Callable[[Sequencer], LeaseCheck],
    ) -> None:
        lock = source.lock(LOCK, ttl=face.ttl, timeout=DEADLINE_S)
        with ThreadPoolExecutor(1) as pool:
            with lock as lease:
                waiter = pool.submit(lock.acquire)
                wait_until(lambda: source.info(LOCK).waiters)
                for proof in (one_way(drawn[1]), lease.sequencer.digest, one_way(draw_claim())):
                    found = check(replace(lease.sequencer, proof=proof))
                    assert (found.is_current, found.last_token) == (False, lease.token)
                assert not check(replace(lease.sequencer, history_id="another")).is_current
                assert not check(replace(lease.sequencer, lock="another")).is_current
            assert check(waiter.result().sequencer).is_current
            waiter.result().release()

    # --- refusals -----------------------------------------------------------------------------------------------------
    @pytest.fixture(params=["sync", "async"])
    def guard(self, request: pytest.FixtureRequest, face: Any) -> Iterator[Any]:
        """Yield a guard that knows nothing of where its lock is."""
        url = face.url.partition("locks=")[0].rstrip("?&")
        if request.param == "sync":
            yield fencelock.guard(url, resource=RESOURCE, lock=LOCK)
            return
        with asyncio.Runner() as runner:
            yield Blocking(fencelock.aio.guard(url, resource=RESOURCE, lock=LOCK), runner.run)

    @pytest.mark.parametrize("token", BEYOND_EVERY_SOURCE)
    def test_a_token_that_no_source_can_have_issued_is_not_sealed(self, guard: Any, token: int) -> None:
        with pytest.raises(ImplausibleTokenError, match="no source can have issued") as caught:
            guard.seal(HandmadeLease(token))
        assert (caught.value.token, caught.value.resource) == (token, RESOURCE)
        assert caught.value.ceiling < token
        guard.seal(HandmadeLease(5))
        with pytest.raises(ImplausibleTokenError):
            guard.close(HandmadeLease(token))
        assert (guard.mark().token, guard.mark().is_closed) == (5, False)

    def test_elections_of_zookeeper_are_plausible(self, guard: Any) -> None:
        for token in (5, 5 + ELECTION, 5 + 300 * ELECTION):
            guard.seal(HandmadeLease(token))
        assert guard.mark().token == 5 + 300 * ELECTION

    def test_an_operator_vouches_for_an_implausible_token(self, guard: Any) -> None:
        restored = HandmadeSource(2**62)
        guard.seal(HandmadeLease(5))
        with pytest.raises(ImplausibleTokenError):
            guard.raise_to(restored.info, reason="a test")
        assert guard.mark().token == 5
        guard.raise_to(restored.info, reason="a test", implausible=True)
        assert guard.mark().token == 2**62
        guard.seal(HandmadeLease(2**62 + 1))  # From there on its tokens are plausible.
        guard.unpoison(source=HandmadeSource(7).info, reason="a test")
        assert guard.mark().token == 7

    def test_the_doctor_says_that_a_signature_proves_nothing(
        self,
        face: Any,
        source: fencelock.Source,
        program: Program,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        report = ResourceReport((), (), (), signed=("reports",))
        monkeypatch.setattr("fencelock.cli.doctor.inspect_resources", lambda _: report)
        done = program.inside("doctor", "--source", face.source_url, "--guard", face.url)
        assert done.returncode == 1
        assert "signature-proves-nothing: resource 'reports' at " in done.stdout
        assert f"{source.url} keeps no keys" in done.stdout
        assert "signature or not" in done.stdout

    def test_keys_rights_and_signatures_are_refused_with_the_reason(self, guard: Any, source: fencelock.Source) -> None:
        for refused in (
            source.keys,
            source.add_key,
            lambda: guard.install_keys(Keys((), ())),
            lambda: guard.require_signatures(reason="a test"),
        ):
            with pytest.raises(UnsupportedError, match="a signature would prove nothing there"):
                refused()
        for refused in (
            lambda: guard.grant("app"),
            lambda: guard.revoke("app", reason="a test"),
            lambda: guard.unpoison("app", source=HandmadeSource(7).info, reason="a test"),
        ):
            with pytest.raises(UnsupportedError, match="roles and access lists"):
                refused()
