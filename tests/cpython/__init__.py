"""CPython's own tests of its locks, run over fencelock's."""
