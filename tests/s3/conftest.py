"""The fixtures of this folder. They are not a plugin of all tests, because boto3 takes its time to be imported."""

from tests.s3.fix_s3 import seaweed

__all__ = ["seaweed"]
