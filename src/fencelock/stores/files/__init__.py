"""Files of a local folder, as a guarded resource. Needs the standard library only.

One guarded write: a connection (`stores/optimistic`) runs the operations of `guard/codec.py`. `Open` reads the mark and
yields the transaction of `guard/block.py`, which writes drafts: files of the block's own, that no reader sees. `Finish`
sends one `CommitFiles`, which `guard/commit.py` carries out under the folder's lock: it compares the mark and what the
block has read, writes the list of renames into the journal, renames each draft to its name, and empties the journal.

`guard/folder.py` has the lock and the descriptors that belong to it, `guard/journal.py` the journal, `guard/layout.py`
says where a guard keeps what. `guard/inspection.py` refuses network file systems, and `guard/folder.py` symbolic and
hard links, and other devices.

To understand the folder, read this and two files: `guard/commit.py` and `guard/folder.py`.
"""
