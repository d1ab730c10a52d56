"""The text of a sequencer: its parts, and what is wrong with a text that is none.

    fl2.<key id>.<source id>.<history id>.<mode>.<token>.<proof>.<lock, base64url>.<signature>

Promise: a text that was cut off anywhere, or has another version's format, is named as that. No error repeats a part,
which may be the proof.
"""

import base64
import binascii
import re

from fencelock.errors import ConfigError

MAX_SEQUENCER_CHARACTERS = 1000
UNSIGNED = "0"
"""The key id of a sequencer that nobody has signed."""
_FORM = "fl2.<key id>.<source id>.<history id>.<mode>.<token>.<proof>.<lock>.<signature>"
_FORMAT = "fl2"
_ANY_FORMAT = re.compile(r"fl[0-9]{1,3}")
_PARTS = _FORM.count(".") + 1
_SIGNATURE_CHARACTERS = 22
_DECIMAL = re.compile(r"[1-9][0-9]{0,18}")


def split_text(text: object) -> list[str]:
    """Return the parts of a sequencer's text after the format, its lock decoded; ConfigError for any other text."""
    whole = str(text)
    parts = whole[: MAX_SEQUENCER_CHARACTERS + 1].split(".")
    if problem := _problem_of(parts):
        raise ConfigError(f"not a sequencer: {problem}")
    if len(whole) > MAX_SEQUENCER_CHARACTERS:
        raise ConfigError(f"not a sequencer: it has more than {MAX_SEQUENCER_CHARACTERS} characters")
    _, key_id, source_id, history_id, mode, token, proof, encoded, signature = parts
    if not _DECIMAL.fullmatch(token):
        # Without the part itself: in a text whose parts are shuffled it may be the proof.
        raise ConfigError("not a sequencer: its token is not an integer with 1 <= token < 2**63")
    return [key_id, source_id, history_id, mode, token, proof, _decode_lock(encoded), signature]


def _problem_of(parts: list[str]) -> str | None:
    """Return why the parts of a text are not those of a sequencer: another format, cut off, or something else."""
    if parts[0] != _FORMAT and _ANY_FORMAT.fullmatch(parts[0]):
        return f"it has the format {parts[0]}, of another version of fencelock, and this one reads {_FORMAT}"
    is_signed = parts[0] == _FORMAT and len(parts) == _PARTS and parts[1] != UNSIGNED
    if parts[0] == _FORMAT and (len(parts) < _PARTS or (is_signed and len(parts[-1]) < _SIGNATURE_CHARACTERS)):
        return f"it was cut off, after {sum(map(len, parts)) + len(parts) - 1} characters: pass on all of it"
    return None if parts[0] == _FORMAT and len(parts) == _PARTS else f"expected {_FORM}"


def _decode_lock(encoded: str) -> str:
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        lock = raw.decode("utf-8")
    except (binascii.Error, ValueError):
        raise ConfigError("not a sequencer: its lock is not the base64url of a lock name") from None
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != encoded:
        raise ConfigError("not a sequencer: its lock is not the canonical base64url of a lock name")
    return lock
