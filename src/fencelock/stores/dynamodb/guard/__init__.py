"""The guard of DynamoDB tables: `store`, the marks in `codec`, what a block yields in `block`, and the write in
`transaction`. Its connections are in stores/optimistic/connection.py.
"""
