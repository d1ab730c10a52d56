"""The source of tokens at PostgreSQL: store, codec, wakeup, inspection, and their SQL."""
