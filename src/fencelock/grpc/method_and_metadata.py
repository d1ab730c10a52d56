"""What both sides of a call name: the method that seals a service, and the type of metadata.

Promise: the names of the metadata, and their texts, are those of `_remote/fields.py`, since HTTP carries the same.
"""

Metadata = tuple[tuple[str, str | bytes], ...]
SEAL_METHOD = "/fencelock.Fencing/Seal"
"""Its request and its response are empty; the answer's marks are of all guards of the service for the token's lock."""
