"""Tests that are the same for etcd and ZooKeeper."""
