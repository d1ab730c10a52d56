"""Fencing across gRPC: real servers and channels of both APIs, on ports of this machine."""
