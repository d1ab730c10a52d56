"""The source of tokens at PostgreSQL."""
