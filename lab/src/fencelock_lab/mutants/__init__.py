"""Mutants of the real flows, guards and stores: each is one small change that some test must notice.

`make mutants` runs two lists. `catalogue.py` is written by hand: one or more mutants for each rule, and the tests that
must kill them. `tool.py` uses a mutation tool to change the flows and the guards' decisions line by line.
`survivors.toml` lists its survivors with a reason each; at most a tenth of the mutants may survive.

Every selection of tests must first pass on the unchanged package. A mutant or a survivor whose line is no longer in
the source is an error: the lists follow the code.
"""
