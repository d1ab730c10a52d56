"""DynamoDB as a source of fencing tokens, and as a guard. Needs the extra `fencelock[aws]` (boto3, aiobotocore).

One acquire: `stores/document/` decides, and yields operations on documents. `source/documents.py` turns each into a
request about items of one table, and `source/store.py` sends it and examines the table.

One guarded write: a connection (`stores/optimistic`) runs the operations of `guard/codec.py`. `Open` reads the marks
and yields the transaction object of `guard/block.py`. The block's reads go out at once, strongly consistent; its writes
and conditions are collected, and `guard/items.py` spells them, one part for each item. `Finish` sends one
TransactWriteItems (`guard/transaction.py`), which checks that each mark still has the value that was read, and writes
all or nothing. Its request token finds out what became of it when the reply is lost.

`table.py` creates a store's own table, and refuses one that is not fit. `requests.py` asks reads again. Clients,
URLs and errors are those of `stores/aws/`.

To understand the folder, read this and four files: `source/documents.py`, `guard/codec.py`, `guard/block.py`,
`guard/transaction.py`.
"""
