"""Connections to S3: the requests, and the client that sends them."""
