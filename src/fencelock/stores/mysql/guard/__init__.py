"""The guard of resources at MySQL and MariaDB."""
