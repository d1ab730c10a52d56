"""A service behind HTTP: two routes are all that a campaign asks of it, and one that compares first is convicted."""

import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import fencelock
from fencelock import Sequencer
from fencelock_lab.campaigns.http_client import HTTPTexts
from fencelock_lab.campaigns.http_service import COMPARE_FIRST, FENCED, TextService
from fencelock_lab.campaigns.http_target import HTTPTarget
from fencelock_lab.campaigns.settings import FAULTS, CampaignSettings, possible_faults
from fencelock_lab.campaigns.targets import make_target
from fencelock_lab.campaigns.verdict import CLEAN
from fencelock_lab.servers.server import HOST
from tests.cli.program import Program, program
from tests.lab.campaigns.test_campaign import SHORT, attack_until
from tests.structure.doc_blocks import blocks, file_name
from tests.support.certificates import certify_server, make_authority
from tests.support.guards import sequencer
from tests.support.helpers import DEADLINE_S, ROOT, wait_until
from tests.support.served import Served

__all__ = ["program"]
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def fenced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextService]:
    with TextService(FENCED, tmp_path_factory.mktemp("fenced")) as service:
        yield service


@pytest.fixture(scope="module")
def comparing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextService]:
    with TextService(COMPARE_FIRST, tmp_path_factory.mktemp("comparing")) as service:
        yield service


class Rig:
    """The resource of one lock at a service, and the processes of two tenures, the first of which is over."""

    def __init__(self, url: str, folder: Path) -> None:
        self.settings = CampaignSettings(
            source=f"sqlite:///{folder}/locks.db", guard=url, run="run", of=folder.name, locks=1
        )
        target = self.process()
        target.create()
        (self.resource,) = target.resources
        proofs = []
        for _ in range(2):
            with fencelock.connect(self.settings.source) as source, source.lock(target.lock) as lease:
                proofs.append(lease.sequencer)
        self.old, self.new = proofs

    def process(self) -> HTTPTarget:
        target = make_target(self.settings, 0)
        assert isinstance(target, HTTPTarget)
        return target

    def write(self, process: HTTPTarget, proof: Sequencer, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Write what was computed from a read; `meanwhile` runs in the middle of the request."""
        seen = process.read(proof, self.resource)
        with process.writing(proof, self.resource, seen, f"w{proof.token}", proof.token):
            meanwhile()

    def names(self) -> list[str]:
        rows, _ = self.process().final(self.resource)
        return [name for name, _, _ in rows]


@pytest.fixture
def rig(fenced: TextService, tmp_path: Path) -> Rig:
    return Rig(fenced.url, tmp_path)


def test_the_final_state_is_what_was_written_and_taken_away_at_the_end(rig: Rig) -> None:
    process = rig.process()
    rig.write(process, rig.new)
    rig.write(process, rig.new)
    name, token = f"w{rig.new.token}", rig.new.token
    assert process.final(rig.resource) == ([(name, 1, token), (name, 2, token)], 2)
    assert process.remove() == []
    process.make(rig.resource)
    assert not process.is_there(rig.resource)


def test_a_stale_write_is_refused_after_a_newer_read(rig: Rig) -> None:
    rig.process().read(rig.new, rig.resource)
    with pytest.raises(fencelock.StaleTokenError) as caught:
        rig.write(rig.process(), rig.old)
    error = caught.value
    assert (error.token, error.mark, error.resource) == (rig.old.token, rig.new.token, rig.resource)


def test_a_write_that_stood_still_in_the_middle_of_its_request_is_refused(rig: Rig) -> None:
    with pytest.raises(fencelock.StaleTokenError):
        rig.write(rig.process(), rig.old, lambda: rig.process().read(rig.new, rig.resource))
    assert rig.names() == []


def test_a_service_that_compares_first_accepts_a_write_that_stood_still(comparing: TextService, tmp_path: Path) -> None:
    rig = Rig(comparing.url, tmp_path)
    process = rig.process()
    seen = process.read(rig.old, rig.resource)
    with closing(sqlite3.connect(comparing.file)) as watching:

        def version() -> int:
            """Return a number that changes with each transaction of another connection."""
            ((number,),) = watching.execute("PRAGMA data_version").fetchall()
            return int(number)

        before = version()
        with process.writing(rig.old, rig.resource, seen, "stale", rig.old.token):
            wait_until(lambda: version() != before)  # It has compared.
            assert rig.process().read(rig.new, rig.resource).position == 0
    assert rig.names() == ["stale"]
    with pytest.raises(fencelock.StaleTokenError):
        process.read(rig.old, rig.resource)


def test_a_process_that_is_killed_in_the_middle_of_its_request_writes_nothing(rig: Rig) -> None:
    class KilledError(Exception): ...

    def die() -> None:
        raise KilledError

    for _ in range(2):
        with pytest.raises(KilledError):
            rig.write(rig.process(), rig.new, die)
    assert rig.names() == []


@pytest.mark.parametrize("name", ["fenced", "comparing"])
def test_a_write_without_a_token_is_refused(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rig = Rig(request.getfixturevalue(name).url, tmp_path)
    rig.write(rig.process(), rig.new)
    with pytest.raises(fencelock.UnfencedWriteError):
        rig.process().write_unfenced(rig.resource)
    assert rig.names() == [f"w{rig.new.token}"]


# --- what is in between -----------------------------------------------------------------------------------------------
@contextmanager
def answering(answer: bytes) -> Iterator[HTTPTexts]:
    """A service that gives one answer, whatever it is asked, once the whole header has come."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as line, line.makefile("rb") as asked:
                while asked.readline().strip():
                    pass
                line.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield HTTPTexts(f"http://{HOST}:{listener.getsockname()[1]}/")
        thread.join(DEADLINE_S)


def whole(status: str, body: bytes = b"", *fields: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", "")
    return "\r\n".join(lines).encode() + body


PROBLEM = "Content-Type: application/problem+json"
SEAL = 'seal="9f3ab2c1d4e5f607"'


@pytest.mark.parametrize(
    ("answer", "error", "is_definite"),
    [
        (b"", fencelock.OutcomeUnknownError, False),
        (b"HTTP/1.1 200", fencelock.OutcomeUnknownError, False),
        (whole("502 Bad Gateway", b"<html>"), fencelock.OutcomeUnknownError, False),
        (whole("412 Precondition Failed", b"<html>"), fencelock.OutcomeUnknownError, False),
        (whole("503 x", b'{"type": "https://a/unavailable"}', PROBLEM), fencelock.SourceUnavailableError, True),
        (whole("503 x", b"not JSON", PROBLEM), fencelock.OutcomeUnknownError, False),
        (whole("503 x", b"[]", PROBLEM), fencelock.OutcomeUnknownError, False),
        (whole("412 x", b'{"type": "https://a/stale-token"}', PROBLEM), fencelock.OutcomeUnknownError, False),
        (whole("504 x", b'{"type": "https://a/outcome-unknown"}', PROBLEM), fencelock.OutcomeUnknownError, False),
        (whole("409 x", b'{"type": "https://a/seal-lost"}', PROBLEM), fencelock.SealLostError, True),
        (whole("409 x", b'{"type": "https://a/token-collision"}', PROBLEM), fencelock.TokenCollisionError, True),
        (whole("403 x", b'{"type": "https://a/wrong-lock"}', PROBLEM), fencelock.GuardError, True),
        (whole("200 OK"), fencelock.UnfencedWriteError, False),
        (whole("200 OK", b"", f'Fencing-Mark: "4";{SEAL}'), fencelock.UnfencedWriteError, False),
    ],
)
def test_what_is_no_answer_of_a_guard_is_never_taken_for_one(
    answer: bytes, error: type[fencelock.FencelockError], is_definite: bool
) -> None:
    with answering(answer) as texts, pytest.raises(error) as caught:
        texts.read(sequencer(5), "name")
    assert caught.value.definite is is_definite
    assert str(sequencer(5)) not in str(caught.value)


def test_a_mark_of_ones_own_token_is_believed() -> None:
    with answering(whole("200 OK", b"text", f'Fencing-Mark: "5";{SEAL}')) as texts:
        assert texts.read(sequencer(5), "name") == "text"


def test_a_service_that_is_not_there_has_certainly_done_nothing() -> None:
    with socket.create_server((HOST, 0)) as listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}/"
    with pytest.raises(fencelock.SourceUnavailableError):
        HTTPTexts(url).write(sequencer(5), "name", "text")


# --- the URL ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "url",
    [
        "http://service.example/texts/",
        "http://192.0.2.1/texts/",
        "https://user:secret@service.example/texts/",
        "https://service.example/texts/?key=secret",
        "https://service.example/texts/#secret",
        "https:///texts/",
    ],
)
def test_a_url_to_which_no_token_may_be_sent_is_refused_and_shows_no_secret(url: str) -> None:
    with pytest.raises(fencelock.ConfigError) as caught:
        make_target(CampaignSettings(source=None, guard=url, run="run", of="source"), 0)
    assert "secret" not in str(caught.value)


def test_a_service_has_a_network_where_its_client_checks_no_name() -> None:
    assert set(possible_faults(None, "http://127.0.0.1:8000/texts/", None)) == set(FAULTS)
    assert set(possible_faults(None, "https://service.example/texts/", None)) == {"freeze", "kill", "stray", "jump"}


def test_a_dry_run_names_the_texts_and_asks_no_service(program: Program) -> None:
    url = "https://service.example/texts/"
    told = program.json("verify", "--guard", url, "--dry-run", "--locks", "2")
    assert (told["guard"], len(told["makes"]), told["makes"]) == (url, 2, told["resources"])


# --- the how-to -------------------------------------------------------------------------------------------------------
def example() -> str:
    """Return the module of the how-to."""
    page = (ROOT / "docs/how-to/verify-a-setup.md").read_text()
    (found,) = (block.body for block in blocks(page) if file_name(block) == "texts.py")
    return found


@contextmanager
def example_served(folder: Path, workers: int) -> Iterator[str]:
    """Run the how-to's service, with a certificate by an authority of the test's own."""
    (folder / "texts.py").write_text(example())
    make_authority(folder, "authority")
    certify_server(folder, "authority")
    words = ("uvicorn", "texts:app", f"--workers={workers}", "--host={host}", "--port={port}", "--log-level=warning")
    with Served(folder, *words, "--ssl-keyfile=server.key", "--ssl-certfile=server.crt") as served:
        yield f"https://localhost:{served.port}/texts/"


def test_the_service_of_the_how_to_keeps_texts_behind_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with example_served(tmp_path, workers=1) as url:
        with pytest.raises(fencelock.SourceUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            HTTPTexts(url).read(sequencer(5), "name")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.crt"))
        test_a_write_that_stood_still_in_the_middle_of_its_request_is_refused(Rig(url, tmp_path))
        test_a_process_that_is_killed_in_the_middle_of_its_request_writes_nothing(Rig(url, tmp_path))
        rig = Rig(url, tmp_path)
        rig.write(rig.process(), rig.new)
        assert rig.names() == [f"w{rig.new.token}"]
        with pytest.raises(fencelock.UnfencedWriteError):
            rig.process().write_unfenced(rig.resource)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_service_of_the_how_to_is_attacked(program: Program) -> None:
    with example_served(program.folder, workers=2) as url:
        program.environment["SSL_CERT_FILE"] = str(program.folder / "authority.crt")
        code, verdict = attack_until(CLEAN, program, "--guard", url, *SHORT)
    assert code == CLEAN, verdict
