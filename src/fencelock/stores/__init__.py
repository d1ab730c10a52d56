"""One folder per system that issues tokens or enforces them, and the contract that each of them keeps (`contract.py`).

A store knows requests, statements and its client. It knows no public class, no thread and no event loop of ours.
"""
