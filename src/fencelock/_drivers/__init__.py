"""Run flows over a store's connections: in the caller's thread (`sync.py`), or on an event loop (`aio.py`).

A driver answers a flow's requests and knows nothing of locks. One request is one round trip on one connection;
whatever interrupts it between request and reply discards that connection. What is to be undone then is the keeper's
work, later and elsewhere: nothing is compensated in the interrupted context.
"""
