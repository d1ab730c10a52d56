"""Run flows over a store's connections: in the caller's thread (`sync.py`), or on an event loop (`aio.py`).

A driver answers a flow's requests and knows nothing about locks. One request is one round trip on one connection; if
anything interrupts the driver between request and reply, it discards that connection. The keeper undoes later, in its
own thread, what must be undone; nothing is compensated in the interrupted context.
"""
