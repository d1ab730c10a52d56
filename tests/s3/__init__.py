"""Tests of what fencelock does with S3, and with servers that speak it."""
