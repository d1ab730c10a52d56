"""The source of tokens at PostgreSQL: the store, its statements, and what waiting needs."""
