"""The guard at PostgreSQL: the store, its statements, and the three ways of using a connection."""
