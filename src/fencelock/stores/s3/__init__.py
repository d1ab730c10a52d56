"""S3, and what speaks it, as a source of tokens and as a guard. Needs the extra `fencelock[aws]` (boto3, aiobotocore).

One acquire: `stores/document/` decides, and yields operations on documents. `source/documents.py` turns each into
requests about objects, which `stores/aws/` sends, and `source/store.py` examines the bucket.

One guarded block: a connection (`stores/optimistic`) runs the operations of `guard/codec.py`. `Open` reads the
resource's manifest, which has the mark and names the object of each key, and yields the transaction of
`guard/block.py`. The block reads what the manifest named, and its writes are kept. `Finish` uploads each value under a
name that is never used again, and replaces the manifest on the condition that it is still the one that was read. All
that the block did becomes true in that one PUT, or nothing of it does: an upload that no manifest names is garbage that
nobody reads.

`guard/manifest.py` says where everything is and what a manifest holds, `guard/garbage.py` which objects can never
count any more. `guard/snapshot.py` is for readers without a lease. `probe.py` says what a server has to keep,
`connection/calls.py` has the requests, and `stores/aws` sends them. `guard/policy.py` prints the bucket's policy.

To understand the folder, read this and four files: `source/documents.py`, `guard/manifest.py`, `guard/codec.py`,
`guard/block.py`.
"""
