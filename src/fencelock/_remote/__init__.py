"""What the services and the clients of every protocol share: HTTP, gRPC and messages carry a sequencer in one way.

Promise: nothing here imports a framework or a client, or decides about a mark; the guard in the handler does that.
"""
