"""The source of tokens at SQLite."""
