"""How fast fencelock is: against the same work by hand, and against other lock libraries on the same store.

`make bench` measures everything within half an hour; `python -m fencelock_lab.benchmarks --help` tells how to measure
less. Machines are noisy: those who are compared take turns on one private server, and what is reported is the median
over the turns, and the median of each turn's ratio. A ratio is a claim, a microsecond is not. Nothing here is a test:
nothing fails because a machine was slow.

`stores/` has a server and the work by hand for each store, `cases/` one module a question, `peers/` those who are
compared, `guards/` guarded writes; `measure.py` takes turns, `parts.py` divides the time, `results.py`, `page.py` and
`plots.py` write what came out.
"""
