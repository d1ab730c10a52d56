"""How fast fencelock is: against the same work by hand, and against other lock libraries on the same store.

`make bench STORE=all` measures everything within an hour; `python -m fencelock_lab.benchmarks --help` tells how to
measure less. Machines are noisy, so the libraries take turns on one private server, and the report has the median over
the turns and the median of each turn's ratio. A ratio is a claim, a microsecond is not. The benchmarks are no tests:
none fails because a machine was slow.

`stores/` has a server and the hand-written equivalent for each store, `cases/` one module for each question, `peers/`
the other libraries, `guards/` guarded writes; `measure.py` takes turns, `parts.py` divides the time, `results.py`,
`page.py` and `plots.py` write the results.
"""
