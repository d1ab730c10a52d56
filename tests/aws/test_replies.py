"""Replies that are cut off, changed, or not the service's own: what became of the request is unknown."""

import zlib

import pytest

from fencelock.errors import OutcomeUnknownError, SourceError
from fencelock.stores.aws.clients import Call, Refusal
from tests.aws.service import NUMBERED, answer, bare_answer, service
from tests.aws.test_clients import PUT, READ, WRITE, Send, ask, clients, credentials, info_of, refused

__all__ = ["ask", "clients", "credentials"]

GET = Call("get_item", {"TableName": "locks", "Key": {"pk": {"S": "a"}}})
FOUND = b'{"Item": {"pk": {"S": "a"}, "value": {"S": "written"}}}'
LIST = Call("list_objects_v2", {"Bucket": "bucket"})
DELETE = Call("delete_object", {"Bucket": "bucket", "Key": "key"})
PAGE = b"<html><body>Sign in to the network</body></html>"


def cut(reply: bytes, *, is_told: bool) -> bytes:
    """Return half of a reply's body, with its full length in the head, or none at all."""
    head, _, body = reply.partition(b"\r\n\r\n")
    if not is_told:
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
    return head + b"\r\nConnection: close\r\n\r\n" + body[: len(body) // 2]


@pytest.mark.parametrize("is_told", [True, False], ids=["with its length", "without"])
@pytest.mark.parametrize("share", [FOUND, b"{}"], ids=["found", "empty"])
def test_an_item_whose_reply_is_cut_off_is_not_taken_for_a_missing_one(ask: Send, share: bytes, is_told: bool) -> None:
    with service(cut(answer("200 OK", share), is_told=is_told)) as running:
        with pytest.raises(OutcomeUnknownError):
            ask(info_of(running), GET)
        assert len(running.requests) == 1


def test_a_reply_that_was_changed_on_its_way_is_noticed_by_its_checksum(ask: Send) -> None:
    sum_of = {"x-amz-crc32": str(zlib.crc32(FOUND))}
    with service(answer("200 OK", FOUND, **sum_of), answer("200 OK", FOUND.replace(b"a", b"b"), **sum_of)) as running:
        reply = ask(info_of(running), GET)
        assert not isinstance(reply, Refusal)
        assert reply["Item"]["value"] == {"S": "written"}
        with pytest.raises(OutcomeUnknownError, match="cut off or changed on its way"):
            ask(info_of(running), GET)


@pytest.mark.parametrize("call", [READ, GET, WRITE, PUT, LIST, DELETE], ids=lambda call: call.operation)
@pytest.mark.parametrize(
    "reply",
    [
        bare_answer("200 OK", PAGE),
        bare_answer("200 OK", b"[1]"),
        bare_answer("200 OK", b"\xff\xfe"),
        bare_answer("400 Bad Request", PAGE),
        bare_answer("403 Forbidden", b""),
        bare_answer("404 Not Found", b"404 page not found"),
        bare_answer("408 Request Timeout", b""),
        bare_answer("429 Too Many Requests", b""),
        bare_answer("301 Moved Permanently", b"", Location="https://127.0.0.1:1/"),
        bare_answer("307 Temporary Redirect", b"", Location="https://127.0.0.1:1/"),
        bare_answer("200 OK", b"{}").replace(b": 2\r\n", b": zwei\r\nConnection: close\r\n"),
    ],
    ids=lambda reply: reply[9:26].decode(errors="replace").replace("\r\n", " "),
)
def test_what_stands_between_neither_acknowledges_nor_refuses(ask: Send, call: Call, reply: bytes) -> None:
    is_for_s3 = call.operation in {"put_object", "list_objects_v2", "delete_object"}
    with service(reply) as running:
        with pytest.raises(OutcomeUnknownError):
            ask(info_of(running, PUT if is_for_s3 else READ), call)
        assert len(running.requests) == 1


def test_a_refusal_of_the_services_own_is_definite_still(ask: Send) -> None:
    with service(refused("AccessDeniedException")) as running, pytest.raises(SourceError) as caught:
        ask(info_of(running), WRITE)
    assert caught.value.definite
    denied = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    # Not every server that speaks S3 numbers its replies.
    with service(bare_answer("403 Forbidden", denied)) as running, pytest.raises(SourceError) as caught:
        ask(info_of(running, PUT), PUT)
    assert caught.value.definite


def test_a_deletion_without_a_number_is_believed(ask: Send) -> None:
    with service(bare_answer("204 No Content", b"")) as running:
        assert not isinstance(ask(info_of(running, PUT), DELETE), Refusal)
    assert set(NUMBERED) == {"x-amz-request-id", "x-amzn-RequestId"}
