"""The adapters, on real databases."""
