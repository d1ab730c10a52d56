"""Connections to PostgreSQL: opening them, URLs, errors, and forks."""
