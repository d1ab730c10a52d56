"""The benchmarks: that each case works, that the time is divided, and that pages and pictures say what was measured."""
