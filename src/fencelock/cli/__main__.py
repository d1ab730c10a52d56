"""`python -m fencelock.cli`: the same as the `fencelock` script, for systems where scripts are not on the path."""

from fencelock.cli import main

main()
