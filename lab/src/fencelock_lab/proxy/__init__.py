"""The TCP proxy that tests and campaigns put before a server to hold, delay, count and lose what passes.

Promise: bytes arrive unchanged and in their order, or not at all. A protocol's framing says where its requests and
replies begin and end; without one the proxy passes bytes.
"""

from fencelock_lab.proxy.fault import Fault, Request
from fencelock_lab.proxy.framing import Frame, Framing
from fencelock_lab.proxy.proxy import Direction, Proxy
from fencelock_lab.proxy.urls import address_of

__all__ = ["Direction", "Fault", "Frame", "Framing", "Proxy", "Request", "address_of"]
