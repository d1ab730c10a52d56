"""The names of the policies that are printed: a role has one for each source and each guarded resource that it uses.

Promise: pure. One source or resource always has one name, so its policy replaces its own former one, and no other.
"""

from hashlib import sha256

from fencelock.stores.aws.url import AwsConnectionInfo

_MAX_CHARACTERS = 128
_DIGEST_CHARACTERS = 16


def policy_name(kind: str, info: AwsConnectionInfo, shown: str) -> str:
    """Return a name that IAM takes. It ends in a digest, because it is cut, and IAM tells no capitals apart."""
    digest = sha256("/".join((kind, info.region or "", info.target, shown)).encode()).hexdigest()[:_DIGEST_CHARACTERS]
    begin = f"fencelock-{kind}-{shown}"[: _MAX_CHARACTERS - len(digest) - 1]
    return f"{begin}-{digest}"
