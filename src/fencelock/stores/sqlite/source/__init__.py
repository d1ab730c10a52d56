"""The source of tokens in a SQLite file: its store, its queue, its statements, and wakeups."""
