"""SQLite: the embedded default, for processes on one machine. Needs nothing but Python's own `sqlite3`.

`source.py` issues tokens, `guard.py` enforces them; they share `database.py` (opening, transactions, errors) and
nothing else.
"""
