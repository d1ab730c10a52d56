"""The source of tokens in a table of DynamoDB."""
