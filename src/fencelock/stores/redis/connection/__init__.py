"""Connections to Redis: the sessions and their pool, URLs, errors, and what a server must be."""
