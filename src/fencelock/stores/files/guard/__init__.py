"""The guard of a folder: `store` and `connection`, the marks in `codec`, and what a block yields in `block`."""
