"""Connections to MySQL and MariaDB: the client, URLs, the wire, errors, and installing a schema."""
