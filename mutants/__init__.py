"""One-line mutants of the real flows, guards and store, one or more for each rule; a named test must kill each.

`make mutants` applies each to a copy of the package, runs the tests that it names, and reports the survivors: a
mutant that survives is a rule without a test. `catalogue.py` is the list, `run.py` the runner. Every mutant's tests
must pass on the unchanged package first, and a mutant whose line is gone is an error: the list follows the code.
"""
