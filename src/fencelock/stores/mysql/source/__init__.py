"""The source of tokens at MySQL and MariaDB: store, codec, inspection, and their SQL."""
