"""The guard at S3: `store` and `connection`, `codec`, `block`, which a block yields, and `manifest`: what counts."""
