"""Tests of the guard of a local folder."""
