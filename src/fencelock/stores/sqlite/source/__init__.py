"""The source of tokens at SQLite: the store, its statements, and what waiting needs."""
