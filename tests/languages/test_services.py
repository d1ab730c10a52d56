"""A service in another language enforces tokens by itself: the code of docs/how-to/enforce-in-*.md, attacked."""

from pathlib import Path

import pytest

from tests.languages.attack import (
    Check,
    admits_the_holder,
    attack,
    check_problem,
    has_its_frozen_transaction_ended,
    loses_nothing_when_frozen_anywhere,
    raises_no_mark_that_was_sealed_before,
    says_that_it_does_not_know_the_outcome,
    tells_of_its_seal_in_a_refusal_of_its_own,
)
from tests.languages.stage import Stage, staged
from tests.sql.mysql.fix_mysql import Database as MySQLDatabase
from tests.sql.postgres.fix_postgres import Database, only

pytestmark = [pytest.mark.slow, pytest.mark.process]

COMPARED = """
    const token = await ask(client, "present", sequencer);
    await client.query("BEGIN");"""
PRESENTED = """
    await client.query("BEGIN");
    const token = await ask(client, "present", sequencer);"""
TOLD = """
    response.setHeader("Fencing-Mark", `"${token}";seal="${SEAL}"`); // Also if the work refuses the request."""
WORKED = """
    const result = await work(client);"""


languages = pytest.mark.parametrize(
    "language", ["node", *(pytest.param(name, marks=pytest.mark.campaign) for name in ("java", "go"))]
)


@languages
@only("18")
def test_the_service_of_the_page_withstands_every_attack(language: str, tmp_path: Path, database: Database) -> None:
    with staged(language, tmp_path, database) as stage:
        failed = attack(stage)
        assert failed == {}, "\n".join(failed.values())


@pytest.mark.campaign
def test_the_service_on_mariadb_withstands_every_attack(tmp_path: Path, mysql_database: MySQLDatabase) -> None:
    with staged("node on MariaDB", tmp_path, mysql_database) as stage:
        failed = attack(stage)
        assert failed == {}, "\n".join(failed.values())


@pytest.mark.campaign
@languages
@only("18")
def test_the_server_ends_a_frozen_transaction_by_itself(language: str, tmp_path: Path, database: Database) -> None:
    with staged(language, tmp_path, database) as stage:
        has_its_frozen_transaction_ended(stage)


@only("18")
def test_a_service_that_compares_before_it_writes_loses_a_write(tmp_path: Path, database: Database) -> None:
    """And that is why the tables are protected: there its writes are refused, its holder's too."""
    with staged("node", tmp_path, database, {PRESENTED: COMPARED}) as stage:
        stage.guard.unprotect("report", reason="to see what a comparison alone does")
        assert convicted(stage, loses_nothing_when_frozen_anywhere)
        stage.guard.protect("report")
        check_problem(stage.client().ask(stage.second, "PUT", "compared"), 500, "unfenced-write")


@only("18")
def test_a_service_that_seals_whatever_the_client_remembers_loses_a_write(tmp_path: Path, database: Database) -> None:
    with staged("node", tmp_path, database, {"if (!wasSealed) await ask": "await ask"}) as stage:
        assert convicted(stage, raises_no_mark_that_was_sealed_before)


@pytest.mark.campaign
@only("18")
def test_a_service_that_tells_of_seals_with_a_success_alone_is_convicted(tmp_path: Path, database: Database) -> None:
    with staged("node", tmp_path, database, {TOLD: "", WORKED: WORKED + TOLD}) as stage:
        assert convicted(stage, tells_of_its_seal_in_a_refusal_of_its_own)


@pytest.mark.campaign
@only("18")
def test_a_service_that_calls_each_lost_connection_definite_is_convicted(tmp_path: Path, database: Database) -> None:
    with staged("node", tmp_path, database, {"if (!isCommitting ||": "if (true ||"}) as stage:
        assert convicted(stage, says_that_it_does_not_know_the_outcome)


def convicted(stage: Stage, check: Check) -> bool:
    """Return whether a service that admits its holder fails a check."""
    return set(attack(stage, [admits_the_holder, check])) == {check.__name__}
