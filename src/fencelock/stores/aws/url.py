"""The URLs of stores in AWS, and of other servers that speak the same APIs.

    dynamodb://REGION/TABLE[?endpoint=URL&profile=NAME]
    s3://BUCKET[/PREFIX][?endpoint=URL&profile=NAME&region=REGION]

`endpoint` is another server than Amazon's own. `profile` is one of the AWS configuration; without it the credentials
are those that botocore finds by itself. Special characters are written as %XX.

Promise: `url` is the one spelling for all URLs of the same store. A URL never contains a secret: a login in the
endpoint is refused.
Never: a connection made, a file or a variable of the environment read.
"""

import re
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from fencelock.errors import ConfigError
from fencelock.stores.errors import unknown_parameter

DYNAMODB, S3 = "dynamodb", "s3"
_FORMS = {
    DYNAMODB: "write dynamodb://REGION/TABLE?endpoint=…&profile=…",
    S3: "write s3://BUCKET/PREFIX?endpoint=…&profile=…&region=…",
}
_PARAMETERS = {DYNAMODB: {"endpoint", "profile"}, S3: {"endpoint", "profile", "region"}}
_REGION = re.compile(r"[a-z]{2}[a-z0-9-]{1,30}")
TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_BUCKET = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_PARTITIONS = (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"))
"""Regions that are not in AWS's main partition, by how their names begin."""
REGION_OF_OTHERS = "us-east-1"
"""What requests to another server than Amazon's are signed for, if the URL does not say."""


class AwsConnectionInfo(NamedTuple):
    """A parsed URL. `target` is the table, or the bucket; `prefix` is empty, or what an S3 URL names in the bucket."""

    service: str
    region: str | None
    endpoint: str | None
    profile: str | None
    target: str
    prefix: str
    url: str

    @property
    def folder(self) -> str:
        """What the names of all objects begin with that an S3 URL is about."""
        return f"{self.prefix}/" if self.prefix else ""

    @property
    def partition(self) -> str:
        """The part of AWS that the region is in, as ARNs name it; the main one if the URL names no region."""
        region = self.region or ""
        return next((name for begin, name in _PARTITIONS if region.startswith(begin)), "aws")


def parse_dynamodb_url(url: str) -> AwsConnectionInfo:
    """Return the connection info of a dynamodb:// URL; ConfigError if the URL is not understood."""
    location, given = _split(DYNAMODB, url)
    region, _, table = location.partition("/")
    if not _REGION.fullmatch(region):
        raise _not_understood(DYNAMODB, "it names no region, such as eu-central-1")
    if not TABLE_NAME.fullmatch(table):
        raise _not_understood(DYNAMODB, "it names no table: 3 to 255 letters, digits, '_', '-' and '.'")
    endpoint = _endpoint(DYNAMODB, given.get("endpoint"))
    shown = f"{DYNAMODB}://{region}/{table}{_query(endpoint)}"
    return AwsConnectionInfo(DYNAMODB, region, endpoint, given.get("profile"), table, "", shown)


def parse_s3_url(url: str) -> AwsConnectionInfo:
    """Return the connection info of an s3:// URL; ConfigError if the URL is not understood."""
    location, given = _split(S3, url)
    bucket, _, path = location.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise _not_understood(S3, "it names no bucket: 3 to 255 letters, digits, '_', '-' and '.'")
    region = given.get("region")
    if region is not None and not _REGION.fullmatch(region):
        raise _not_understood(S3, "its region is not a region's name, such as eu-central-1")
    endpoint = _endpoint(S3, given.get("endpoint"))
    if endpoint is not None:
        region = region or REGION_OF_OTHERS
    prefix = unquote(path.strip("/"))
    shown = f"{S3}://{bucket}{'/' if prefix else ''}{quote(prefix)}{_query(endpoint)}"
    return AwsConnectionInfo(S3, region, endpoint, given.get("profile"), bucket, prefix, shown)


def _split(service: str, url: str) -> tuple[str, dict[str, str]]:
    """Return a URL's location and its parameters."""
    location, _, query = url.partition("://")[2].partition("?")
    if "@" in location:
        # Without the URL itself, which may contain a secret.
        raise _not_understood(service, "it names a login: give credentials by the environment, or by a profile")
    given = parse_qs(query, keep_blank_values=True)
    known = _PARAMETERS[service]
    if unknown := given.keys() - known:
        raise _not_understood(service, unknown_parameter(min(unknown), query, known))
    if empty := [name for name, texts in given.items() if not texts[-1]]:
        raise _not_understood(service, f"its {min(empty)} is empty")
    return location, {name: texts[-1] for name, texts in given.items()}


def _endpoint(service: str, text: str | None) -> str | None:
    """Return the one spelling of an endpoint."""
    if text is None:
        return None
    if ".dax-clusters." in text or text.startswith(("dax:", "daxs:")):
        raise ConfigError(
            "a DAX cluster needs a client of its own, and is a cache: name the table itself, without an endpoint"
        )
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise _not_understood(service, "its endpoint is not an http:// or https:// URL")
    if "@" in parts.netloc:
        raise _not_understood(service, "its endpoint names a login: give credentials by the environment")
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def _query(endpoint: str | None) -> str:
    return "" if endpoint is None else f"?endpoint={quote(endpoint, safe=':/')}"


def _not_understood(service: str, reason: str) -> ConfigError:
    article = "an" if service == S3 else "a"
    return ConfigError(f"{article} {service} URL is not understood ({reason}): {_FORMS[service]}")
