"""Connections to SQLite: opening them, URLs, errors, and forks."""
