"""What would be published: a source distribution and a wheel of each of the two, which `make test` builds into dist/.

The wheels are built from the source distributions, and the tests run against them: so both kinds were installed.
"""

import email
import re
import subprocess
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.support.helpers import ROOT

PLACEHOLDER = "https://fencelock.example"
DO_NOT_UPLOAD = "Private :: Do Not Upload"
PYTHON = ROOT / ".venv" / "bin" / "python"
BUILT = sorted((ROOT / "dist").glob("*"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (BUILT and PYTHON.exists()), reason="`make test` builds dist/"),
]


@pytest.fixture(params=BUILT, ids=lambda path: path.name)
def built(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def files_in(path: Path) -> dict[str, bytes]:
    """Return the files of a distribution, by their paths without the folder that a source distribution begins with."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(path) as archive:
        members = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        return {member.name.partition("/")[2]: file.read() for member, file in members if file}


def metadata(path: Path) -> Message:
    """Return the metadata that a package index would read."""
    wanted = re.compile(r"PKG-INFO|[^/]+\.dist-info/METADATA")
    (content,) = (content for name, content in files_in(path).items() if wanted.fullmatch(name))
    return email.message_from_bytes(content)


def relative_links(text: str) -> list[str]:
    """Return the targets of a text's links that lead nowhere from a package index."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"https://|#", target)]


def test_each_distribution_has_both_forms() -> None:
    found = [re.sub(r"-\d.*?(\.tar\.gz|-py3-none-any\.whl)$", r"\1", path.name) for path in BUILT]
    assert sorted(found) == [
        f"fencelock{lab}{form}" for lab in ("", "_lab") for form in ("-py3-none-any.whl", ".tar.gz")
    ]


def test_twine_accepts_them() -> None:
    done = subprocess.run(
        [PYTHON, "-m", "twine", "check", "--strict", *BUILT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == len(BUILT)


def test_the_long_description_has_no_relative_link(built: Path) -> None:
    description = metadata(built).get_payload()
    assert isinstance(description, str)
    assert "](https://" in description
    assert relative_links(description) == []


def test_a_relative_link_is_found() -> None:
    assert relative_links("[a](b.md) [c](https://d/e) [f](#g)") == ["b.md"]


def test_nothing_is_uploaded_while_the_address_is_a_placeholder(built: Path) -> None:
    told = metadata(built)
    urls = told.get_all("Project-URL") or []
    assert urls
    assert (DO_NOT_UPLOAD in (told.get_all("Classifier") or [])) == any(PLACEHOLDER in url for url in urls)


def test_the_licence_is_in_it(built: Path) -> None:
    assert [name for name in files_in(built) if name.endswith("LICENSE")]


def test_the_source_distribution_can_be_tested() -> None:
    (source,) = (path for path in BUILT if re.match(r"fencelock-\d.*\.tar\.gz$", path.name))
    files = files_in(source)
    wanted = {"Makefile", "README.md", "SECURITY.md", "lab/pyproject.toml", "scripts/test", "requirements/test.txt"}
    assert wanted <= set(files)
    for folder in ("src", "lab/src", "tests", "docs", "examples"):
        of_clone = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}
        assert {name for name in of_clone if "__pycache__" not in name} <= set(files), folder
