"""The guard at S3: `store`, the marks in `codec`, what a block yields in `block`, and what counts in `manifest`. Its
connections are in stores/optimistic/connection.py.
"""
