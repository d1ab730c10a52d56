"""The guard of resources at SQLite."""
