"""The laboratory: private servers, a TCP proxy, campaigns, a simulator, a model, mutants, benchmarks and a demo.

It proves the library `fencelock`, and is not needed to use it.
"""

__version__ = "0.1.0.dev0"
