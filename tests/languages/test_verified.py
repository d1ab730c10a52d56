"""`fencelock verify` attacks the services of the pages: its jobs are frozen and killed, and the network is cut."""

from pathlib import Path

import pytest

import fencelock
from fencelock_lab.campaigns.preparation import source_part_of
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.verdict import CLEAN, NOT_ENOUGH
from tests.cli.program import Program, program
from tests.lab.campaigns.test_campaign import SHORT, attack
from tests.languages.services import build, running
from tests.languages.stage import make_report
from tests.sql.postgres.fix_postgres import Database, only

__all__ = ["program"]
pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.process]


@only("18")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("language", ["node", "java", "go"])
def test_fencelock_verify_finds_no_fault(language: str, program: Program, tmp_path: Path, database: Database) -> None:
    """The report is the text of the campaign's one resource, under that one's name."""
    of = source_part_of(program.url)
    settings = CampaignSettings(program.url, guard=database.url(), run="", of=of, locks=1)
    (resource,) = settings.resources(0)
    build(language, tmp_path, {'"reports"': f'"{resource}"', '"/report"': f'"/{resource}"'})
    make_report(database, fencelock.guard(database.url(), resource=resource, lock=settings.lock(0)))
    with running(language, tmp_path, database.server.port, database.name) as service:
        code, verdict = attack(program, "--guard", f"{service.url}/", "--locks", "1", *SHORT)
    # On a loaded machine little happens in one campaign, which is not the service's fault.
    assert code in {CLEAN, NOT_ENOUGH}, (verdict, service.log)
    assert verdict["violations"] == []
    assert verdict["amounts"]["handoffs"] > 0, verdict
