"""The project's one app."""
