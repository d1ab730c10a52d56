"""An exhaustive model of the protocol, each of its rules a switch.

`python -m fencelock_lab.model` explores every interleaving of some small worlds. With all rules on it finds nothing;
with any one off it finds the anomaly for which the rule exists. `python -m fencelock_lab.model --without RULE` shows
the shortest way to it.

What is modelled
- One lock, two or three clients with one or two tenures each, one or two resources, each a counter that a tenure
  raises by reading it and writing what it has computed, as often as the scene says.
- A source that grants, ends leases at any moment, and mints tokens under a bound on its disk; requests to acquire
  and to release that are delayed, lost, or delivered twice.
- A guard that seals, checks, refuses and closes, in the steps in which the library does so; writes that are
  delayed, lost, or delivered twice, also after their sender has gone.
- Power cuts and restores of the source and of a resource, with and without what an operator has to do then; the
  switch from observing to enforcing; breaking a lease.
- An answer is received when it is given: to get it late is to take the next step late, and to lose it is to take none.
- A client may be frozen after any step: it takes its next one late or never. It never looks at its lease's
  deadline, since no look would help.

What is not
- Time. A lease may end at any moment, so what a holder's own clock prevents is no part of the proof, and no part is
  needed.
- The queue: whoever waits may be next. Order, notification and dead waiters are tests of the stores.
- The order of one tenure's own writes, which is its connection's (see LIMITS in `scenes.py`).
- Stores: how one makes a step atomic or durable is its own business, and what the conformance kit is for. That
  `admit` of the model is `admit` of the library is a test.
- More of everything. The bounds are constants and the numbers in `scenes.py`; each rule's anomaly needs at most two
  clients, which suggests, and does not prove, that larger worlds have no others.

The parts: `explorer.py` walks, `world.py` has the states, `clients.py`, `source.py`, `guard.py` and `faults.py` say
what may happen next, `protocol.py` puts that together; `rules.py` has the switches, `scenes.py` the small worlds;
`checks.py` runs, `report.py` and `picture.py` show. Nothing but the standard library is needed.
"""
