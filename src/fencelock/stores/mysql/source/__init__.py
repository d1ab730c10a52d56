"""The source of tokens at MySQL and MariaDB."""
