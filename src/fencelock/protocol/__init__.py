"""The public contract between lock logic and stores: requests, replies, and what a source and a guard must be."""
