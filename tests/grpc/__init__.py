"""Fencing across gRPC: real servers and channels of both APIs, on ports of this machine."""

# Before anything imports gRPC, which reads its settings then: other tests of this worker fork beside the etcd store.
import fencelock.stores.etcd  # noqa: F401
