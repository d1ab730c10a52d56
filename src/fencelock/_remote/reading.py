"""A request's fields, made into the sequencer that guards take.

Promise: whatever a client may send becomes a sequencer or a refusal of the request, and no other error. A refusal
repeats nothing of what was sent. No mark is compared here: the guard in the handler does that.
"""

from collections.abc import Sequence

from fencelock._remote.carried import CarriedSequencer
from fencelock._remote.faults import RefusedRequestError, malformed_token
from fencelock._remote.fields import decode_sealed, decode_string
from fencelock._sequencer_text import MAX_SEQUENCER_CHARACTERS
from fencelock.model import Sequencer


def read_carried(tokens: Sequence[str], sealed: Sequence[str]) -> CarriedSequencer | None:
    """Return the sequencer of a request with these values of Fencing-Token and Fencing-Sealed; None without a token."""
    if not tokens:
        return None
    if len(tokens) > 1:
        raise RefusedRequestError(malformed_token(f"Fencing-Token is there {len(tokens)} times: send it once"))
    try:
        sequencer = Sequencer.parse(decode_string(tokens[0], MAX_SEQUENCER_CHARACTERS))
    except ValueError as error:
        raise RefusedRequestError(malformed_token(f"Fencing-Token: {error}")) from None
    try:
        told = decode_sealed(", ".join(sealed))
    except ValueError as error:
        raise RefusedRequestError(malformed_token(f"Fencing-Sealed: {error}")) from None
    return CarriedSequencer(sequencer, told)
