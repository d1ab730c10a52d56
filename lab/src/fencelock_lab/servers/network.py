"""The network between the members of a cluster: TCP proxies on 127.0.0.1 that cut one member off from all others.

Promise: bytes arrive unchanged and in their order; what an isolation held back arrives when it is over, as TCP sends it
again. Only members speak to each other here: their clients do not come this way.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_CHUNK_BYTES = 65536
HOST = "127.0.0.1"
_PATIENCE_S = 3.0
_PAUSE_S = 0.02

Introduce = Callable[[bytes], tuple[str, bytes]]
"""Tells from the first bytes of a connection which member has opened it, and what to pass on in their place."""


class Network:
    """The connections between the members of a cluster, and which member is isolated."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._isolated: str | None = None
        self._age = 0
        """How often all was forgotten."""
        self._is_closed = False
        self._listeners: list[socket.socket] = []

    def isolate(self, member: str | None) -> None:
        """Cut a member off from all others; None: nobody any more."""
        with self._changed:
            self._isolated = member
            self._changed.notify_all()

    def forget(self) -> None:
        """Pass on nothing of what was said until now: the members are down, and their history is to go back."""
        with self._changed:
            self._age += 1

    def close(self) -> None:
        """Take no connection any more. What is open ends with the members."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for listener in self._listeners:
            listener.close()

    def lead_to(self, member: str, port: int, introduce: Introduce) -> int:
        """Return a port that leads to the port of a member."""
        listener = socket.create_server((HOST, 0))
        self._listeners.append(listener)
        _start(self._accept, listener, member, port, introduce)
        way: int = listener.getsockname()[1]
        return way

    def _accept(self, listener: socket.socket, member: str, port: int, introduce: Introduce) -> None:
        with suppress(OSError):  # It was closed.
            while True:
                client, _ = listener.accept()
                _start(self._connect, client, member, port, introduce)

    def _connect(self, client: socket.socket, member: str, port: int, introduce: Introduce) -> None:
        """Find out who calls, and pass everything on, both ways, until a side ends."""
        age = self._age
        with client, suppress(OSError):
            first = client.recv(_CHUNK_BYTES)
            caller, first = introduce(first)
            self._wait(caller, member)
            with _opened(port) as server:
                if age != self._age:
                    return
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.sendall(first)
                back = _start(self._pass, server, client, caller, member)
                self._pass(client, server, caller, member)
                back.join()

    def _pass(self, origin: socket.socket, goal: socket.socket, caller: str, member: str) -> None:
        with suppress(OSError):
            while data := origin.recv(_CHUNK_BYTES):
                self._wait(caller, member)
                goal.sendall(data)
        for one in (origin, goal):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _wait(self, *ends: str) -> None:
        """Wait for as long as one of the two members is cut off."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._isolated not in ends)


def _opened(port: int) -> socket.socket:
    """Connect to a member. One that does not listen yet may do so in a moment: its caller believes to have it already,
    and would take a lost connection for a lost member.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection((HOST, port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def _start(function: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread
