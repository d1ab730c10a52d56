"""A source of tokens in this process's memory, for tests: every rule kept, nothing durable."""
