"""One module for each question; its `run(site, seconds)` takes about that long and returns the results."""
