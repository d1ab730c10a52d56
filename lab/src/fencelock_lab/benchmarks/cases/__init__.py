"""One module a question; each has `run(site, seconds)`, which takes about so long and returns its results."""
