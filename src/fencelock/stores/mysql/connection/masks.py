"""Masks for claims and proofs in statements: other sessions of the same account see the text of each statement.

Promise: without the key, which the server gives in a result and never in a text, a masked secret says nothing, and two
masked secrets say no more. A masked secret shows whether the right key unmasks it.
Never: masks anything but 32 hexadecimal digits, which is what a claim and a proof are; other texts stay as they are.
"""

import os
import re
from hashlib import sha256

_DIGITS = 32
_SECRET = re.compile(r"[0-9a-f]{32}")


def draw_mask_secret() -> str:
    """Return a new secret, from which a server draws the keys of its sessions."""
    return os.urandom(32).hex()


def mask(key: str, secret: str) -> str:
    """Return the secret as 64 hexadecimal digits: a check, from which the pad is drawn, and the secret XOR'ed with it.

    `REVEAL` and `IS_UNREADABLE` of `expressions.py` are its inverse.
    """
    if not _SECRET.fullmatch(secret):
        return secret
    check = _hash(key + secret)
    return f"{check}{int(secret, 16) ^ int(_hash(key + check), 16):032x}"


class SharedMask:
    """What one process masks with at one guarded database: a ticket, which its statements show, and the ticket's key.

    The server finds the key by the ticket, so any connection may use it. Another session that repeats the text has
    another number, by which nothing is unmasked.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._drawn: tuple[str, str] | None = None

    def learn(self, ticket: str | None, key: str | None) -> None:
        """Keep what the server has drawn; nothing if the connection's number is not the server's, behind a proxy."""
        self._drawn = None if ticket is None or key is None else (ticket, key)
        self.is_asked = True

    def mask(self, secret: str, number: int | None) -> str:
        """Return the secret as the server's connection of this number unmasks it; as it is if there is no key."""
        if self._drawn is None or number is None:
            return secret
        ticket, key = self._drawn
        masked = mask(sha256(f"{key}{number}".encode()).hexdigest(), secret)
        return secret if masked == secret else ticket + masked


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:_DIGITS]
