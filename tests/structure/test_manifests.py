"""The manifests in the documents fit the published schemas, and start what their page runs."""

import json
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.structure.doc_blocks import blocks, commands, file_name
from tests.support.helpers import ROOT

PAGE = (ROOT / "docs" / "how-to" / "run-in-containers.md").read_text()
MANIFESTS = {file_name(block): block.body for block in blocks(PAGE) if block.language == "yaml"}
COMPOSE = MANIFESTS["compose.yaml"]
KUBERNETES = list(yaml.safe_load_all(MANIFESTS["app.yaml"]))


def check_compose(text: str) -> None:
    """Compare a compose file with the schema of its specification."""
    # Found and not imported: the package would load an HTTP client.
    package = Path(find_spec("check_jsonschema").origin).parent
    schema = (package / "builtin_schemas" / "vendor" / "compose-spec.json").read_text()
    jsonschema.validate(yaml.safe_load(text), json.loads(schema))


def started(manifest: Any) -> list[str]:
    """Return the commands that a manifest's containers start, as a shell would take them."""
    if isinstance(manifest, list):
        return [command for each in manifest for command in started(each)]
    if not isinstance(manifest, dict):
        return []
    own = [shlex.join(manifest["command"])] if "command" in manifest else []
    return own + started(list(manifest.values()))


def test_the_compose_file_fits_its_schema() -> None:
    check_compose(COMPOSE)
    with pytest.raises(jsonschema.ValidationError, match="condition"):
        check_compose(COMPOSE.replace("condition: service_healthy", "condition_: service_healthy"))


@pytest.mark.parametrize("version", ["1.28", "1.36"])
@pytest.mark.parametrize("manifest", KUBERNETES, ids=lambda manifest: manifest["kind"])
def test_a_kubernetes_manifest_fits_its_schema(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**manifest, "specs": {}}, version, strict=True)


def test_the_manifests_start_what_the_page_runs() -> None:
    found = {*started(yaml.safe_load(COMPOSE)), *started(KUBERNETES)}
    assert len(found) == 3
    run = [command.text for block in blocks(PAGE) for command in commands(block)]
    assert [command for command in found if not any(text.endswith(command) for text in run)] == []
