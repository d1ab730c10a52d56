"""Tests of what fencelock does with etcd."""
