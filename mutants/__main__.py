"""`python -m mutants`: exit 1 if any survives."""

import sys
import tempfile
from pathlib import Path

from mutants.run import main

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fenceline-mutants-") as folder:
        sys.exit(1 if main(Path(folder) / "src") else 0)
