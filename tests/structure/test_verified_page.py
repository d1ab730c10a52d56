"""The page of what `make verify` found says what its results file says, and nothing else."""

from fencelock_lab.campaigns.results import FILE, read
from fencelock_lab.campaigns.verified_page import PAGE, page
from tests.support.helpers import ROOT

HOW = "run: python -m fencelock_lab.campaigns --publish"


def test_the_page_says_what_the_results_say() -> None:
    assert (ROOT / PAGE).read_text() == page(read(ROOT / FILE)), HOW
