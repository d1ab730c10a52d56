"""The network between the servers of a cluster: proxies on 127.0.0.1 that cut one server off from all others.

Promise: what an isolation holds back arrives when it is over. Only servers of the cluster connect to each other here;
their clients do not.
"""

from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from functools import partial

from fencelock_lab.proxy import Framing, Proxy
from fencelock_lab.proxy.framing import CHUNK_BYTES

_CONNECT_TIMEOUT_S = 3.0

Introduce = Callable[[bytes], tuple[str, bytes]]
"""Returns from a connection's first bytes which server has opened it, and what to pass on in place of these bytes."""


class _Introduction(Framing):
    """Finds out which server has opened the connection."""

    def __init__(self, introduce: Introduce) -> None:
        self._introduce = introduce
        self.caller = ""

    async def opening(self, reader: StreamReader, writer: StreamWriter) -> bytes:
        """Read who calls."""
        self.caller, first = self._introduce(await reader.read(CHUNK_BYTES))
        return first


class _Link(Proxy):
    """The proxy before a port of one server."""

    def __init__(self, port: int, introduce: Introduce) -> None:
        super().__init__(port, connect_timeout_s=_CONNECT_TIMEOUT_S)
        self._introduce = introduce

    def new_framing(self) -> Framing:
        """Return what finds out who calls."""
        return _Introduction(self._introduce)


class Network:
    """The connections between the servers of a cluster."""

    def __init__(self) -> None:
        self._proxies: list[tuple[str, Proxy]] = []

    def lead_to(self, server: str, port: int, introduce: Introduce) -> int:
        """Return a port of a proxy before the port of a server."""
        proxy = _Link(port, introduce)
        self._proxies.append((server, proxy.start()))
        return proxy.port

    def isolate(self, isolated: str | None) -> None:
        """Cut a server off from all others; None: reconnect all."""
        for server, proxy in self._proxies:
            if isolated is None:
                proxy.thaw()
            else:
                proxy.freeze(partial(_involves, isolated, server))

    def forget(self) -> None:
        """Pass on nothing of what was sent until now: the servers are down, and go back to an older history."""
        for _, proxy in self._proxies:
            proxy.cut()

    def close(self) -> None:
        """End all connections, and accept no more."""
        for _, proxy in self._proxies:
            proxy.close()


def _involves(isolated: str, called: str, framing: Framing) -> bool:
    """Return whether a connection begins or ends at the isolated server."""
    assert isinstance(framing, _Introduction)
    return isolated in {called, framing.caller}
