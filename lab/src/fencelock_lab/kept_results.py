"""What the results that the repository keeps have in common: the machine they come from, and how a file is written.

Promise: a reader finds the old content of a file or the new one, whole. Each result is a line of its own.
"""

import json
import os
import platform
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

_LINE = 119


def paragraph(text: str) -> str:
    """Return a paragraph of a page, in lines as long as those that people write."""
    return textwrap.fill(" ".join(text.split()), _LINE, break_long_words=False, break_on_hyphens=False) + "\n"


def machine() -> str:
    """Return a description of the machine that the numbers come from, and of its load now."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    kernel = platform.release().partition("-")[0]
    load = f"load {os.getloadavg()[0]:.1f} when it began"
    return f"{os.cpu_count()} cores ({model}), {load}, Linux {kernel}, Python {platform.python_version()}"


def filesystem(folder: Path) -> str:
    """Return the name of a folder's file system."""
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    above = [mount for mount in mounts if folder.resolve().is_relative_to(mount[0])]
    return max(above, key=lambda mount: len(mount[0]))[1]


def write_results(path: Path, head: Mapping[str, object], results: Iterable[object]) -> None:
    """Write a JSON file: what the head says, and the results under `results`."""
    lines = ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in results)
    text = json.dumps(head, indent=1, ensure_ascii=False)[: -len("\n}")]
    replace(path, f'{text},\n "results": [\n  {lines}\n ]\n}}\n')


def replace(path: Path, content: str) -> None:
    """Replace a file atomically: a reader finds the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.replace(path)
