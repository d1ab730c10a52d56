"""What the etcd store and `fencelock.grpc` share: messages from a table, and calls that were never sent.

Promise: each class is an ordinary protobuf message; only field numbers and types matter on the wire. A table has a
descriptor pool of its own, so neither another package's messages nor any version of protobuf conflicts with it.
Never: a message registered in protobuf's global pool.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

UNREACHED = ("failed to connect to all addresses", "DNS resolution failed", "errors resolving", "empty address list")
"""How gRPC's details begin when it had no connection to send a request over.

For a name that cannot be resolved, older versions write `DNS resolution failed` and 1.85 writes `errors resolving`.
"""
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint64": _Field.TYPE_UINT64,
}


def message_classes(package: str, table: dict[str, str]) -> dict[str, Any]:
    """Return a class for each message of the table.

    A message's fields are separated by commas: number, name, type, and a star if the field is repeated.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for line in filter(None, fields.split(", ")):
            _add_field(package, message, line)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}


def _add_field(package: str, message: Any, line: str) -> None:
    number, name, kind = line.split()
    plain = kind.rstrip("*")
    label = _Field.LABEL_OPTIONAL if plain == kind else _Field.LABEL_REPEATED
    field = message.field.add(name=name, number=int(number), label=label)
    if plain in _SCALARS:
        field.type = _SCALARS[plain]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{plain}"
