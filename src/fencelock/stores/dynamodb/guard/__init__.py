"""The guard of DynamoDB tables: `store` and `connection`, the marks in `codec`, and what a block yields in `block`."""
