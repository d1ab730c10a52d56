"""The guard at SQLite: the store, its statements, and the three ways of using a connection."""
