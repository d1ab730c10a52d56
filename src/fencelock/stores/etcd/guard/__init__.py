"""The guard at etcd: `store`, the marks in `codec`, what a block yields in `block`, and how it is sent in
`transactions`. Its connections are in stores/optimistic/connection.py.
"""
