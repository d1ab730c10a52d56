"""Redis and Valkey as a guard, alone and in a cluster."""
