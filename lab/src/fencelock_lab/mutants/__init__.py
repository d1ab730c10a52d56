"""Mutants of the real flows, guards and stores: each is one small change, and some test must notice it.

`make mutants` runs two lists. `catalogue.py` is written by hand: one or more mutants for each rule, and the tests that
must kill it. `tool.py` has a mutation tool change everything else in the flows and in the guards' decisions, line by
line; what survives there stands in `survivors.toml`, each with the reason, and more than a tenth may not survive.

Every selection of tests must pass on the unchanged package first. A line of the catalogue or a survivor that is not in
the source any more is an error: the lists follow the code.
"""
