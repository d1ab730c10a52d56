"""The commands that this app adds to manage.py."""
