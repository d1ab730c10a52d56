"""A private server that speaks the APIs of DynamoDB and S3: an emulator, whose conditions and transactions are atomic.

It runs as the user who starts it: the interpreter that it needs may be that user's own.

Never: durable. It keeps everything in memory, so a kill loses it.
"""

import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from fencelock_lab.servers.fleet import LoneServerFleet
from fencelock_lab.servers.programs import MINISTACK, Wrap, need
from fencelock_lab.servers.server import HOST, Server

REGION = "eu-central-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "000000000000",
    "AWS_SECRET_ACCESS_KEY": "anything",
    # No file of the user's is read, and no service of the machine is asked.
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Variables that a client of this server needs; the server does not check them."""
_ANSWER_S = 2.0


def as_caller(command: Sequence[object]) -> list[str]:
    """Return the command as it is."""
    return [str(word) for word in command]


class MinistackServer(Server):
    """A server without data at first."""

    def __init__(self, folder: Path, *, host: str = HOST, wrap: Wrap = as_caller) -> None:
        super().__init__(folder, host=host, wrap=wrap)
        self.variables = {
            "BIND_HOST": self.host,
            "SERVICES": "dynamodb,s3",
            "LOG_LEVEL": "WARNING",
            # Servers of other services, on ports that are the same for everybody.
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",
            "HOME": str(folder),
            "TMPDIR": str(folder),
        }

    def command(self) -> list[object]:
        """Return the command that starts it."""
        return ["env", f"GATEWAY_PORT={self.port}", need(MINISTACK)]

    def is_ready(self) -> bool:
        """Return whether it answers."""
        url = f"http://{self.address}/_ministack/health"
        with suppress(OSError), urllib.request.urlopen(url, timeout=_ANSWER_S):
            return True
        return False

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"http://{self.address}"

    def dynamodb_url(self, table: str) -> str:
        """Return the URL of a table."""
        return f"dynamodb://{REGION}/{table}?{urlencode({'endpoint': self.endpoint}, safe=':/')}"

    def s3_url(self, bucket: str, prefix: str = "") -> str:
        """Return the URL of a prefix in a bucket."""
        location = f"{bucket}/{prefix}" if prefix else bucket
        return f"s3://{location}?{urlencode({'endpoint': self.endpoint}, safe=':/')}"


class MinistackFleet(LoneServerFleet[MinistackServer]):
    """Makes servers, and shares one."""

    kind = "ministack"
    server = MinistackServer
