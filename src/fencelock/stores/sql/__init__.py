"""What the two SQL servers, PostgreSQL and MySQL, share."""
