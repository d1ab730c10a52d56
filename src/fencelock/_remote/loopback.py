"""Which hosts are certainly this machine, so that a token may go there without TLS.

Promise: a name that a resolver may look up elsewhere is not taken for this machine; `app.localhost` is such a name.
"""

from ipaddress import ip_address


def is_loopback_host(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address; an IPv6 address has no brackets here."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
