"""The guard at MySQL and MariaDB: the store, its statements, and the three ways of using a connection."""
