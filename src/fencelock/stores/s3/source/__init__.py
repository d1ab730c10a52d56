"""The source of tokens in an S3 bucket: its documents, the store, and the policy."""
