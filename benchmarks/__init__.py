"""How fast fenceline is, as ratios against what the raw client can do by hand, measured in one run on one machine.

`make bench` runs every case; `python -m benchmarks --help` tells how to run some. Machines are noisy: the variants of
a case take turns in short batches, and what is reported is the median over the batches, and the median of each turn's
ratio. A ratio is a claim, a microsecond is not. Nothing here is a test: nothing fails because a machine was slow.

`measure.py` takes turns, `floor.py` is the work by hand, `cases/` holds one module a question, `report.py` and
`plots.py` write what came out.
"""
