"""Tests of everything that fencelock does in ZooKeeper."""
