"""URLs that a proxy can stand in, and how they lead through it.

Never: a server reached that the URL does not name.
"""

from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, urlencode, urlsplit

HOST = "127.0.0.1"
_PORTS = {
    "etcd": 2379,
    "mariadb": 3306,
    "mysql": 3306,
    "postgres": 5432,
    "postgresql": 5432,
    "zookeeper": 2181,
}
_NAMED = {"etcd": {"tls", "ca", "cert", "key"}, "zookeeper": {"tls", "ca", "cert", "key", "sasl"}}
"""Parameters with which a client checks the server's name, which a proxy does not have."""


def address_of(url: str | None) -> tuple[str, int] | None:
    """Return the one host and port that a URL names.

    None if there is no network, more than one host, or a client that would notice a proxy.
    """
    parts = urlsplit(url or "")
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or "," in parts.netloc or not parts.hostname:
        return None
    if _NAMED.get(scheme, set()) & parse_qs(parts.query, keep_blank_values=True).keys():
        return None
    return parts.hostname, parts.port or _PORTS[scheme]


def through(url: str, port: int) -> str:
    """Return the URL with a proxy that listens on the port in the server's place."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    host, query = HOST, parts.query
    if parts.scheme.lower() in {"postgres", "postgresql"} and parts.hostname != HOST:
        # libpq checks a certificate against the host's name, and connects to the address.
        host, query = _by_address(parts)
    return parts._replace(netloc=f"{user}{at}{host}:{port}", query=query).geturl()


def _by_address(parts: SplitResult) -> tuple[str, str]:
    params = dict(parse_qsl(parts.query)) | {"hostaddr": HOST}
    host = parts.hostname or ""
    return (f"[{host}]" if ":" in host else host), urlencode(params, quote_via=quote)
