"""An exhaustive model of the protocol in which each rule is a switch.

`python -m fencelock_lab.model` explores every interleaving of some small worlds. With all rules on it finds no
anomaly that the scene promises to exclude; with any one rule off it finds the one that the rule prevents. `python -m
fencelock_lab.model --without RULE` shows the shortest trace to it.

Inside the model
- One lock, two or three clients with one or two tenures each, one or two resources, each a counter that a tenure
  increments as often as the scene says: it reads the value, computes the next one, and writes it.
- A source that grants leases, ends them at any moment, and mints tokens under a bound on its disk; requests to
  acquire and to release that are delayed, lost, or delivered twice.
- A guard that seals, checks, refuses and closes, in the same steps as the library; writes that are delayed, lost, or
  delivered twice, even after their sender has gone.
- Power cuts and restores of the source and of a resource, with and without the operator's necessary steps; the
  switch from observing to enforcing; breaking a lease.
- Answers arrive at once: a late answer is a client that takes its next step late, and a lost answer is a client that
  takes no further step.
- A client may freeze after any step: it takes its next step late or never. It never checks its lease's deadline,
  because it may freeze right after the check.

Outside the model
- Time. A lease may end at any moment, so the proof does not use a holder's own clock, and does not need it.
- The queue: any waiter may be next. The stores' tests cover order, notification and dead waiters.
- The order of one tenure's own writes, which its connection keeps (see LIMITS in `scenes.py`).
- Stores: each store makes its steps atomic and durable in its own way, and the conformance kit checks it. A test
  compares the model's `admit` with the library's.
- Larger worlds. The bounds are constants and the numbers in `scenes.py`; each rule's anomaly needs at most two
  clients, which suggests, but does not prove, that larger worlds have no other anomalies.

The modules: `explorer.py` explores the states of `world.py`; `clients.py`, `source.py`, `guard.py` and `faults.py`
yield the possible next steps, and `protocol.py` combines them; `rules.py` has the switches, `scenes.py` the small
worlds; `checks.py` runs them, `report.py` and `picture.py` show the results. The model needs only the standard library.
"""
