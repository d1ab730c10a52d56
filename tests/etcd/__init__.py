"""Tests of what fenceline does with etcd."""
