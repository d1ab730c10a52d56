"""A source of tokens over any store of small documents that are replaced on the condition of a version.

- `operations.py`: the operations that a store performs, as plain values: all that a store has to write itself.
- `layout.py`: what the documents of the source and of its locks hold. `sightings.py`: for how long this process has
  seen a lease unchanged. `state.py`: what the connections of one source object share.
- `reading.py`: how every request begins: read, decide, decide again, draw a token.
- `grants.py`: acquire, poll and release. `renewal.py`: renew. `admin.py`: install, break, purge, epochs, inspection.
- `store.py`: `DocumentSource`, from which a store derives, and its connections.

Why it is safe: a lock has one document, whose version is random and new with every write. The lock's next holder reads
the document, then draws a token from the source's counter, then replaces the version that it has read. A grant in
between has changed that version; a grant before had drawn its token before. So the tokens of a lock rise, and one
document has one holder, whatever is late, lost or repeated. Only a holder's own write makes or extends a lease, and its
deadline counts from before that write was sent. A release frees the lock and hands it to nobody.
"""
