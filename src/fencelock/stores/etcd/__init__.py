"""etcd as a source of fencing tokens, and as a guard: needs the extra `fencelock[etcd]` (grpcio, protobuf).

Importing this package imports no client. It asks gRPC, before anything here imports that, to get ready for fork():
without this a forked child waits for ever; and not to tell of each fork on stderr, but of errors alone. gRPC is asked
by environment variables, which are taken back once it has read them, so that no program started later inherits them.
"""

import os

_SETTINGS = {"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "ERROR"}
FOR_GRPC = [name for name in _SETTINGS if name not in os.environ]
"""The variables that are set here, since nobody else has set them."""
for _name in FOR_GRPC:
    os.environ[_name] = _SETTINGS[_name]
