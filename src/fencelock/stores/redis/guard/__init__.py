"""Redis as a guard: marks beside the data, and one script that compares them."""
