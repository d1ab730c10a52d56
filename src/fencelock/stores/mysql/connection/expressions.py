"""Expressions that fencelock's routines share, written in their SQL as functions, and filled in where it is created.

A stored function would need a right of its own while the server writes a binary log, and would cost as much as a
statement.

- `ONE_WAY(text)`: `fencelock.model.one_way` of a text.
- `BASE64URL(bytes)`: base64 with - and _, without padding and line ends.
- `SIGNATURE(inner pad, outer pad, text)`: the signature of a sequencer, by HMAC-SHA256. The text is the sequencer's up
  to its last dot, with the digest in the proof's place.
- `IS_ACCOUNT(account, name, host)`: whether a login from a host is that account, which is `name` or `name@pattern`.
- `PRESENTED(resource in hexadecimal, token, stamp)`: the entry of `@fencelock_presented` by which this session, and no
  other, has presented a mark.
- `MASK_PAD(text, key)`: what a text that `masks.mask` has masked was XOR'ed with.
- `REVEAL(text, pad)`: the secret in a masked text, or the text itself if it is not masked.
- `IS_UNREADABLE(text, secret, key)`: whether the text is masked, and by another key.

Never: anything but fencelock's own SQL is expanded.
"""

_ONE_WAY = "CONVERT(LEFT(SHA2(CONCAT(x'66656E63656C6F636B20636C61696D00', {0}), 256), 32) USING ascii)"
"""The prefix is "fencelock claim" and a zero byte."""
_BASE64URL = "REPLACE(REPLACE(REPLACE(REPLACE(TO_BASE64({0}), '+', '-'), '/', '_'), '=', ''), CHAR(10), '')"
_SIGNATURE = (
    "BASE64URL(UNHEX(LEFT(SHA2(CONCAT({1}, UNHEX(SHA2(CONCAT({0}, "
    "x'66656E63656C6F636B2073657175656E63657220763200', {2}), 256))), 256), 32)))"
)
"""The constant is "fencelock sequencer v2" and a zero byte."""
_IS_ACCOUNT = (
    "(BINARY {0} = BINARY {1} OR "
    "(BINARY LEFT({0}, CHAR_LENGTH({0}) - CHAR_LENGTH(SUBSTRING_INDEX({0}, '@', -1)) - 1) = BINARY {1} "
    "AND {2} LIKE SUBSTRING_INDEX({0}, '@', -1)))"
)
_PRESENTED = (
    "CONCAT({0}, '.', {1}, '.', CONVERT(LEFT(SHA2(CONCAT({2}, '.', CONNECTION_ID()), 256), 32) USING ascii), ',')"
)
_HALF = (
    "LPAD(HEX(CAST(CONV(SUBSTRING({0}, %d, 16), 16, 10) AS UNSIGNED) ^ "
    "CAST(CONV(SUBSTRING({1}, %d, 16), 16, 10) AS UNSIGNED)), 16, '0')"
)
_MASK_PAD = "SHA2(CONCAT({1}, LEFT({0}, 32)), 256)"
_REVEAL = f"IF(LENGTH({{0}}) = 64, LOWER(CONCAT({_HALF % (33, 1)}, {_HALF % (49, 17)})), {{0}})"
"""In two halves: MariaDB has no bitwise operators on strings. Both use the pad: keep it in a variable."""
_IS_UNREADABLE = "(LENGTH({0}) = 64 AND NOT LEFT(SHA2(CONCAT({2}, {1}), 256), 32) <=> LEFT({0}, 32))"
EXPRESSIONS = {
    "MASK_PAD": _MASK_PAD,
    "REVEAL": _REVEAL,
    "IS_UNREADABLE": _IS_UNREADABLE,
    "IS_ACCOUNT": _IS_ACCOUNT,
    "PRESENTED": _PRESENTED,
    "SIGNATURE": _SIGNATURE,
    "BASE64URL": _BASE64URL,
    "ONE_WAY": _ONE_WAY,
}


def expand(statement: str) -> str:
    """Return the statement with each expression in the place of its call."""
    for name, template in EXPRESSIONS.items():
        while (start := statement.rfind(f"{name}(")) >= 0:
            end = _closing(statement, start + len(name))
            arguments = _split(statement[start + len(name) + 1 : end])
            statement = statement[:start] + template.format(*arguments) + statement[end + 1 :]
    return statement


def _split(arguments: str) -> list[str]:
    """Return the arguments of a call, at most three; a comma inside the last belongs to it."""
    places, depth = [], 0
    for place, character in enumerate(arguments):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            places.append(place)
    starts = [0, *(place + 1 for place in places)]
    return [arguments[start:end].strip() for start, end in zip(starts, [*places, None], strict=True)]


def _closing(statement: str, opening: int) -> int:
    """Return where the parenthesis closes that opens there."""
    depth = 0
    for place in range(opening, len(statement)):
        depth += {"(": 1, ")": -1}.get(statement[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"a parenthesis never closes: {statement[opening : opening + 40]}")
