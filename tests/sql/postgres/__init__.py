"""PostgreSQL: private servers, a proxy that loses replies, and what the design takes for granted about both."""
