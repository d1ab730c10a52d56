"""Connections to SQLite files: opening them, URLs, errors, and forks."""
