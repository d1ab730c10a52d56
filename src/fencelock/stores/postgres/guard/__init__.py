"""The guard at PostgreSQL: store, codec, three kinds of connection, errors, inspection, and their SQL."""
