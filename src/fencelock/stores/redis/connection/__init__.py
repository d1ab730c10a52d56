"""Connections to Redis: the client, URLs, errors, and what a server must be."""
