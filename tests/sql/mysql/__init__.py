"""Tests of the MySQL source and guard, over real servers of their own."""
