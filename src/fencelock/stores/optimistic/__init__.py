"""What guards of stores with optimistic transactions share: a block takes no lock, and its one write is refused if
something that it relies on has changed.

- `guard_codec.py`: the guard's operations, with `stored_values.py` (marks, floors and the audit), `purging.py` (which
  marks go, and the floors that they leave) and `effects.py` (`once=` and `dispatch`).
- `write_buffer.py`: a block whose writes are collected.
"""
