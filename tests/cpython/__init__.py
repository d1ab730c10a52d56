"""CPython's own tests of its locks, run over fenceline's."""
