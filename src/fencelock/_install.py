"""How users install fencelock, its extras and its lab: the one place to change when the packages are published.

Promise: each text is a command that works today. The packages are not on an index yet, so each command names a clone.
"""


def install_extra(extra: str) -> str:
    """Return how to install fencelock with an extra, as the end of a sentence."""
    return f"from a clone of fencelock, run pip install '.[{extra}]'"


def install_lab() -> str:
    """Return how to install fencelock-lab, as the end of a sentence."""
    return "from a clone of fencelock, run pip install '.[cli]' ./lab"
