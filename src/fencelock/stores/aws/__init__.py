"""What the stores in AWS share: URLs, clients and errors. Needs the extra `fencelock[aws]` (boto3, aiobotocore).

`url.py` reads dynamodb:// and s3:// URLs. `clients.py` makes the clients of botocore and aiobotocore, which send the
plain `Call`s that the stores yield, once each; `aiohttp_session.py` keeps aiohttp from sending one again.
`errors.py` says what an error means. `documents.py` is what the sources in documents have in common, and `policies.py`
writes the policies of IAM.
"""
