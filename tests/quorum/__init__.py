"""Consensus stores of three servers: what holders, waiters and guarded writers live through while servers fail."""
