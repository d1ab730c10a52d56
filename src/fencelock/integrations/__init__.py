"""Adapters for users' frameworks: guarded transactions in SQLAlchemy and in Django, and migrations by Alembic.

Promise: `import fencelock` loads none of them. Without its framework, each one raises an error that says which extra to
install.
"""
