"""The guard of a folder: `store`, the marks in `codec`, what a block yields in `block`, and each operation in
`commit`. Its connections are in stores/optimistic/connection.py.
"""
