"""S3, and what speaks it, as a guard of objects. Needs the extra `fencelock[aws]` (boto3; aiobotocore for asyncio).

One guarded block: `guard/connection.py` runs the operations of `guard/codec.py`. `Open` reads the resource's manifest,
which has the mark and names the object of each key, and yields the transaction of `guard/block.py`. The block reads
what the manifest named, and its writes are kept. `Finish` uploads each value under a name that is never used again, and
replaces the manifest on the condition that it is still the one that was read. All that the block did becomes true in
that one PUT, or nothing of it does: an upload that no manifest names is garbage that nobody reads.

`guard/manifest.py` says where everything is and what a manifest holds, `guard/probe.py` what a server has to keep,
`guard/collecting.py` which objects can never count any more. `guard/reading.py` is for readers without a lease.
`connection/calls.py` has the requests, and `stores/aws` sends them. `policy.py` prints the bucket's policy.

To understand the folder, read this and three files: `guard/manifest.py`, `guard/codec.py`, `guard/block.py`.
"""
