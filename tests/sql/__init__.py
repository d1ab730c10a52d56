"""The two SQL servers, PostgreSQL and MySQL: rules for both here, and each server's own in a folder of its name."""
