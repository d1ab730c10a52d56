"""PostgreSQL: a source of tokens, and a guard whose triggers refuse stale writers in any language.

Needs the extra `fencelock[postgres]` (psycopg 3).
"""
