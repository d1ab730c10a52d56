"""The source of tokens at MySQL and MariaDB: the store, its statements, and what waiting needs."""
