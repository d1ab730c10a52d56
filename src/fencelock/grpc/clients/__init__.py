"""A client's side of gRPC: channels whose calls carry a lease's sequencer, for blocking code and for asyncio."""
