"""etcd as a source of fencing tokens, and as a guard: needs the extra `fenceline[etcd]` (grpcio, protobuf).

Importing this package imports no client. It asks gRPC, before anything here imports that, to get ready for fork():
without this a forked child waits for ever; and not to tell of each fork on stderr, but of errors alone.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
