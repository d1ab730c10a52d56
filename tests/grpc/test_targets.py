"""A token goes to other machines over encrypted channels only, and details are read as every language reads them."""

from typing import Any
from urllib.parse import quote

import grpc
import pytest

import fencelock
from fencelock.errors import ConfigError
from fencelock.grpc.clients.targets import is_loopback
from fencelock.grpc.statuses import MAX_DETAIL_BYTES, STATUS_DETAILS, ErrorInfo, decode_details, encode_details, shorten

LOCAL = [
    "localhost:50051",
    "localhost",
    "127.0.0.1:1",
    "[::1]:5",
    "dns:///localhost:5",
    "dns:localhost:5",
    "ipv4:127.0.0.1:1,127.0.0.2:1",
    "ipv6:[::1]:3",
    "unix:/tmp/socket",
    "unix-abstract:socket",
]
REMOTE = [
    "",
    "example.com:1",
    "127.0.0.1.example.com:3",
    "localhost.example.com:3",
    "dns://192.0.2.1/localhost:1",
    "ipv4:127.0.0.1:1,192.0.2.1:2",
    "xds:///localhost",
    "unix.example.com:3",
    "[::2]:5",
    "0.0.0.0:5",
]


@pytest.mark.parametrize("target", LOCAL)
def test_a_target_of_this_machine_needs_no_encryption(target: str):
    assert is_loopback(target)


@pytest.mark.parametrize("target", REMOTE)
def test_any_other_target_needs_credentials(target: str, lease: fencelock.Lease, caller_of: Any):
    with pytest.raises(ConfigError, match="a token is a secret"):
        caller_of(lease, target)


def test_a_token_goes_unencrypted_to_who_is_trusted(lease: fencelock.Lease):
    fencelock.grpc.channel(lease, "example.com:1", insecure=True).close()
    fencelock.grpc.channel(lease, "example.com:1", grpc.ssl_channel_credentials()).close()


def test_details_are_those_of_google_rpc():
    encoded = encode_details(9, "a text", ErrorInfo("STALE_TOKEN", {"token": "42", "mark": "43"}))
    assert encoded == (
        b"\x08\x09\x12\x06a text\x1a]\x0a(type.googleapis.com/google.rpc.ErrorInfo\x121"
        b"\x0a\x0bSTALE_TOKEN\x12\x09fencelock\x1a\x0b\x0a\x05token\x12\x0242\x1a\x0a\x0a\x04mark\x12\x0243"
    )
    assert decode_details([(STATUS_DETAILS, encoded)]) == ErrorInfo("STALE_TOKEN", {"token": "42", "mark": "43"})


@pytest.mark.parametrize("value", [b"", b"\xff\xff", b"\x08\x09", "text", b"\x1a\x02\x12\x00"])
def test_details_of_others_are_none(value: Any):
    assert decode_details([(STATUS_DETAILS, value)]) is None
    assert decode_details([]) is None


def test_details_of_another_domain_are_none():
    encoded = encode_details(9, "", ErrorInfo("STALE_TOKEN", {}))
    assert decode_details([(STATUS_DETAILS, encoded.replace(b"fencelock", b"otherlock"))]) is None


@pytest.mark.parametrize("text", ["short", "ä" * 4000, "\U0001f512" * 500, "x" * 1000])
def test_a_text_has_room_in_the_metadata(text: str):
    shown = shorten(text)
    assert len(quote(shown)) <= MAX_DETAIL_BYTES
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]) and len(shown) > 50)
