"""Files of a local folder, as a guarded resource. Needs the standard library only.

One guarded write: `guard/connection.py` runs the operations of `guard/codec.py`. `Open` reads the mark and yields the
transaction of `guard/block.py`, which writes drafts: files of the block's own, that no reader sees. `Finish` sends one
`CommitFiles`, which `guard/commit.py` carries out under the folder's lock: it compares the mark and what the block has
read, writes the list of renames into the journal, renames each draft to its name, and empties the journal.

`guard/folder.py` has the lock and the descriptors that belong to it, `guard/journal.py` the journal, `guard/layout.py`
says where a guard keeps what, and `guard/checks.py` refuses what cannot be guarded: network file systems, symbolic and
hard links, other devices.

To understand the folder, read this and two files: `guard/commit.py` and `guard/folder.py`.
"""
