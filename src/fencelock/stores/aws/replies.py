"""Whether a reply is the service's own, and whole, before botocore reads it.

botocore compares no length, and reads a body that is no JSON as an empty answer: one that was cut off would say that
there is no such item. What stands between may answer in the service's place: a proxy with a page of its own, a load
balancer with a bare 408 after the request has arrived.

Promise: a reply that is cut off, or that the service has not given, becomes a ReplyError, whatever its status says.
Never: a body of a stream read, which botocore compares with its length itself.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from botocore import exceptions

from fencelock.stores.aws.url import DYNAMODB

_NO_CONTENT = 204
_WITH_ETAG = {"GetObject", "HeadObject", "PutObject"}
"""Operations whose success has an ETag, at every server that speaks S3."""
_FIRST_FAILURE = 300


class ReplyError(exceptions.HTTPClientError):
    """There is no reply that says what the service has done."""

    fmt = "{error}"


def check_reply(operation_model: Any, response_dict: Mapping[str, Any], **_: object) -> None:
    """Raise ReplyError unless the reply is the service's, and whole; botocore calls it before it reads one."""
    status, body = response_dict["status_code"], response_dict["body"]
    headers = {str(name).lower(): value for name, value in response_dict["headers"].items()}
    is_whole = True
    if isinstance(body, bytes) and operation_model.http.get("method") != "HEAD":
        is_whole = headers.get("content-length", str(len(body))) == str(len(body))
    if operation_model.service_model.service_name == DYNAMODB:
        is_own = "x-amzn-requestid" in headers and _is_object(body)
        is_whole &= headers.get("x-amz-crc32", crc := str(zlib.crc32(body))) == crc
    elif status < _FIRST_FAILURE and operation_model.name in _WITH_ETAG:
        is_own = "etag" in headers
    else:
        # Not every server that speaks S3 numbers its replies.
        is_own = "x-amz-request-id" in headers or status == _NO_CONTENT or _is_xml(body)
    if not is_whole:
        raise ReplyError(error=f"the reply with status {status} was cut off or changed on its way")
    if not is_own:
        raise ReplyError(error=f"the reply with status {status} is not the service's own: ask what stands between")


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def _is_xml(body: Any) -> bool:
    return isinstance(body, bytes) and body.lstrip().startswith((b"<?xml", b"<Error"))
