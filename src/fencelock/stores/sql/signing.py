"""HMAC-SHA256 where a server has only SHA-256: a key, XOR'ed with HMAC's two constants, once for all signatures.

Promise: SHA-256 of the outer pad and SHA-256 of the inner pad and a text is the text's HMAC (RFC 2104).
"""

from hashlib import sha256

BLOCK_BYTES = 64
_INNER, _OUTER = 0x36, 0x5C


def hmac_pads(secret: bytes) -> tuple[bytes, bytes]:
    """Return the inner and the outer pad of a key."""
    key = secret if len(secret) <= BLOCK_BYTES else sha256(secret).digest()
    block = key.ljust(BLOCK_BYTES, b"\0")
    return bytes(byte ^ _INNER for byte in block), bytes(byte ^ _OUTER for byte in block)
