"""`python -m fenceline.cli`: the same as the `fenceline` script, for where scripts are not on the path."""

from fenceline.cli import main

main()
