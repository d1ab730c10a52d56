"""Connections to PostgreSQL: the client, URLs, the wire, errors, and installing a schema."""
