"""Connections to MySQL and MariaDB: opening them, URLs, errors, and forks."""
