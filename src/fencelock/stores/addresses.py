"""The servers that the URL of a cluster names: `host[:port][,host[:port]…]`, an IPv6 address in brackets.

Promise: pure. What is not understood is not repeated: it may be a piece of a password with an @ or a / in it.
"""

MAX_PORT = 65_535


class AddressError(ValueError):
    """An address is not understood; the message says why. Never leaves the stores."""


def address_of(member: str, default_port: int) -> str:
    """Return one member as `host:port`; AddressError if it is none."""
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
    if not colon or member.endswith("]"):
        return member, str(default_port)
    return host, port
