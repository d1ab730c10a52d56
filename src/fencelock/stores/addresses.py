"""The servers in the URL of a cluster: `host[:port][,host[:port]…]`, with an IPv6 address in brackets.

Promise: pure. An error message never repeats text that it could not parse: it may be part of a password with an @ or
a / in it.
"""

MAX_PORT = 65_535


class AddressError(ValueError):
    """An address cannot be parsed; the message says why. Never leaves the stores."""


def parse_address(member: str, default_port: int) -> str:
    """Return one member as `host:port`; AddressError if it is not an address."""
    host, port = _split(member, default_port)
    if host in ("", "[]"):
        raise AddressError("it names no host")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        raise AddressError(f"a port is a number from 1 to {MAX_PORT}")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if set(host[1:-1] if is_bracketed else host) & set("[]") or (":" in host and not is_bracketed):
        raise AddressError("an IPv6 address stands in brackets, as in [::1]:80")
    return f"{host}:{port}"


def _split(member: str, default_port: int) -> tuple[str, str]:
    host, colon, port = member.rpartition(":")
    # A colon inside brackets belongs to the IPv6 address: such a member has no port.
    if not colon or member.endswith("]"):
        return member, str(default_port)
    return host, port
