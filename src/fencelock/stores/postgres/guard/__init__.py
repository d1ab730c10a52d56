"""The guard of resources at PostgreSQL."""
