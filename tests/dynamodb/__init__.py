"""Tests of what fencelock does with DynamoDB."""
