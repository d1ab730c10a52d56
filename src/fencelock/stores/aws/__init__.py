"""What the stores in AWS share: URLs, clients and errors. Needs the extra `fencelock[aws]` (boto3, aiobotocore).

`url.py` reads dynamodb:// and s3:// URLs. `session.py` makes the clients of botocore and aiobotocore, which send the
plain `Call`s that the stores' codecs yield, once each. `errors.py` says what an error means.
"""
