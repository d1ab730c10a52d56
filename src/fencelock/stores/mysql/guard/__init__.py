"""The guard at MySQL and MariaDB: store, codec, three kinds of connection, errors, protection, inspection, and SQL."""
