"""The app's migrations."""
