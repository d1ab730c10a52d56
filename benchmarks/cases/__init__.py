"""One module a question; each has `run(folder, scale)`, which returns its results. `scale` 1.0 is the full length."""
