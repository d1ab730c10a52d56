"""URLs that a proxy can stand in, and how they lead through it.

Never: a server reached that the URL does not name.
"""

from collections.abc import Sequence
from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, urlencode, urlsplit

HOST = "127.0.0.1"
_PORTS = {
    "etcd": 2379,
    "http": 80,  # And no https, whose client checks the server's name.
    "mariadb": 3306,
    "mysql": 3306,
    "postgres": 5432,
    "postgresql": 5432,
    "redis": 6379,
    "zookeeper": 2181,
}
ENDPOINTS = frozenset({"dynamodb", "s3"})
"""Systems of AWS: a URL names the server in its parameter `endpoint`, or leaves it to AWS, whose names are checked."""
CLUSTERS = frozenset({"etcd", "zookeeper"})
"""Systems of several servers, any of which a client may ask."""
_NAMED = {"etcd": {"tls", "ca", "cert", "key"}, "zookeeper": {"tls", "ca", "cert", "key", "sasl"}}
"""Parameters with which a client checks the server's name, which a proxy does not have."""


def addresses_of(url: str | None) -> list[tuple[str, int]]:
    """Return the hosts and ports that a URL names.

    None of them if there is no network, or a client that would notice a proxy. Only the URLs of clusters name several.
    """
    parts = urlsplit(url or "")
    scheme = parts.scheme.lower()
    if scheme in ENDPOINTS:
        return addresses_of(_endpoint(parts))
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if scheme not in _PORTS or not all(hosts) or (len(hosts) > 1 and scheme not in CLUSTERS):
        return []
    if _NAMED.get(scheme, set()) & parse_qs(parts.query, keep_blank_values=True).keys():
        return []
    found = (urlsplit(f"//{host}") for host in hosts)
    return [(one.hostname, one.port or _PORTS[scheme]) for one in found if one.hostname]


def through(url: str, ports: Sequence[int]) -> str:
    """Return the URL with a proxy in the place of each server, which listens on the port of its number."""
    parts = urlsplit(url)
    if parts.scheme.lower() in ENDPOINTS:
        params = dict(parse_qsl(parts.query)) | {"endpoint": through(_endpoint(parts), ports)}
        return parts._replace(query=urlencode(params, safe=":/")).geturl()
    user, at, _ = parts.netloc.rpartition("@")
    host, query = HOST, parts.query
    if parts.scheme.lower() in {"postgres", "postgresql"} and parts.hostname != HOST:
        # libpq checks a certificate against the host's name, and connects to the address.
        host, query = _by_address(parts)
    hosts = ",".join(f"{host}:{port}" for port in ports)
    return parts._replace(netloc=f"{user}{at}{hosts}", query=query).geturl()


def _endpoint(parts: SplitResult) -> str:
    return dict(parse_qsl(parts.query)).get("endpoint", "")


def _by_address(parts: SplitResult) -> tuple[str, str]:
    params = dict(parse_qsl(parts.query)) | {"hostaddr": HOST}
    host = parts.hostname or ""
    return (f"[{host}]" if ":" in host else host), urlencode(params, quote_via=quote)
