"""The mutants' catalogue follows the code: its lines are there, and so are the tests that it names."""

import pytest

from fencelock_lab.mutants.catalogue import MUTANTS, Mutant, trials
from tests.support.helpers import ROOT


def test_every_line_of_the_catalogue_stands_in_its_file_exactly_once() -> None:
    assert len(trials()) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_mutant_changes_something_and_names_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.old != mutant.new
    assert all((ROOT / tests).is_file() for tests in mutant.tests.split())
