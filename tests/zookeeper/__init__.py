"""Tests of everything that fenceline does in ZooKeeper."""
