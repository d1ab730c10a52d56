"""URLs of stores in AWS: their one spelling, and what is refused."""

import pytest

from fencelock.errors import ConfigError
from fencelock.stores.aws.url import AwsConnectionInfo, parse_dynamodb_url, parse_s3_url


@pytest.mark.parametrize(
    ("url", "info"),
    [
        (
            "dynamodb://eu-central-1/locks",
            AwsConnectionInfo("dynamodb", "eu-central-1", None, None, "locks", "", "dynamodb://eu-central-1/locks"),
        ),
        (
            "dynamodb://eu-central-1/locks?profile=prod&endpoint=http://Localhost:4566/",
            AwsConnectionInfo(
                "dynamodb",
                "eu-central-1",
                "http://localhost:4566",
                "prod",
                "locks",
                "",
                "dynamodb://eu-central-1/locks?endpoint=http://localhost:4566",
            ),
        ),
    ],
)
def test_a_table_has_one_spelling(url: str, info: AwsConnectionInfo) -> None:
    assert parse_dynamodb_url(url) == info
    assert parse_dynamodb_url(info.url)._replace(profile=info.profile) == info


@pytest.mark.parametrize(
    ("url", "info"),
    [
        ("s3://bucket", AwsConnectionInfo("s3", None, None, None, "bucket", "", "s3://bucket")),
        (
            "s3://bucket/a/b%20c/?region=eu-west-1",
            AwsConnectionInfo("s3", "eu-west-1", None, None, "bucket", "a/b c", "s3://bucket/a/b%20c"),
        ),
        (
            "s3://bucket/a?endpoint=https://minio:9000",
            AwsConnectionInfo(
                "s3",
                "us-east-1",
                "https://minio:9000",
                None,
                "bucket",
                "a",
                "s3://bucket/a?endpoint=https://minio:9000",
            ),
        ),
    ],
)
def test_a_prefix_has_one_spelling(url: str, info: AwsConnectionInfo) -> None:
    assert parse_s3_url(url) == info
    assert parse_s3_url(info.url)._replace(region=info.region) == info


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://eu-central-1",
        "dynamodb:///locks",
        "dynamodb://eu-central-1/a",
        "dynamodb://eu-central-1/a/b/c",
        "dynamodb://key:secret@eu-central-1/locks",
        "dynamodb://eu-central-1/locks?endpoint=ftp://secret",
        "dynamodb://eu-central-1/locks?endpoint=http://key:secret@host",
        "dynamodb://eu-central-1/locks?secret=1",
        "dynamodb://eu-central-1/locks?profile=",
        "s3://",
        "s3:///secret",
        "s3://key:secret@bucket",
        "s3://bucket?region=secret/",
    ],
)
def test_what_is_not_understood_is_refused_and_not_shown(url: str) -> None:
    parse = parse_dynamodb_url if url.startswith("dynamodb") else parse_s3_url
    with pytest.raises(ConfigError, match=r"write (dynamodb|s3)://") as caught:
        parse(url)
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["dax://cluster", "daxs://cluster", "https://c.abc.dax-clusters.eu-central-1.amazonaws.com"]
)
def test_a_cache_before_the_table_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="DAX"):
        parse_dynamodb_url(f"dynamodb://eu-central-1/locks?endpoint={endpoint}")
