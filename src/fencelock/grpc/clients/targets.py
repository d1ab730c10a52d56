"""Where a token may go without encryption: to this machine only, unless the user says otherwise.

Promise: a target that is not certainly this machine is not taken for it, and no proxy gets what is meant for it.
"""

import re
from collections.abc import Sequence
from typing import Any

from fencelock._remote.loopback import is_loopback_host
from fencelock.errors import ConfigError

Options = Sequence[tuple[str, Any]]

_LOCAL_SCHEMES = ("unix:", "unix-abstract:")
_ADDRESS = re.compile(r"(?:dns:(?:///?)?|ipv4:|ipv6:)?(?P<addresses>[^/]+)")
_HOST = re.compile(r"\[(?P<bracketed>[^\]]*)\](?::\w+)?|(?P<plain>[^:]*)(?::\w+)?")


def open_channel(api: Any, target: str, credentials: Any, options: Options, *, insecure: bool, **more: Any) -> Any:
    """Open a channel of `grpc` or `grpc.aio`; ConfigError if tokens would go to another machine as they are."""
    if credentials is not None:
        return api.secure_channel(target, credentials, options=options, **more)
    is_local = is_loopback(target)
    if not (is_local or insecure):
        raise ConfigError(
            f"{target} may be another machine, and a token is a secret: whoever reads it on the way may write with it. "
            f"Pass credentials, as grpc.ssl_channel_credentials(), or insecure=True if the network encrypts by itself"
        )
    # A proxy of the environment would be asked even for this machine.
    without_proxy = (("grpc.enable_http_proxy", 0),) if is_local else ()
    return api.insecure_channel(target, options=(*options, *without_proxy), **more)


def is_loopback(target: str) -> bool:
    """Return whether all addresses of a gRPC target are of this machine."""
    if target.startswith(_LOCAL_SCHEMES):
        return True
    found = _ADDRESS.fullmatch(target)
    return found is not None and all(_is_loopback_address(address) for address in found["addresses"].split(","))


def _is_loopback_address(address: str) -> bool:
    found = _HOST.fullmatch(address)
    return found is not None and is_loopback_host(found["bracketed"] or found["plain"])
