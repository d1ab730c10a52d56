"""The TCP proxy that tests and campaigns put before a server to hold, delay, count and lose what passes.

Promise: bytes arrive unchanged and in their order, or not at all. A protocol's framing says where its requests and
replies begin and end; without one the proxy passes bytes.
"""

from fencelock_lab.proxy.framing import Frame, Framing
from fencelock_lab.proxy.proxy import Proxy
from fencelock_lab.proxy.request import Request, RequestFault
from fencelock_lab.proxy.urls import addresses_of, through
from fencelock_lab.proxy.weather import Direction

__all__ = ["Direction", "Frame", "Framing", "Proxy", "Request", "RequestFault", "addresses_of", "through"]
