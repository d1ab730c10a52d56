"""The guard of a SQLite file: its store, its statements, and the three kinds of connection."""
