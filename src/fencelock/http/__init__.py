"""Fencing across HTTP: middleware that brings a request's sequencer to the guards of its handler.

Promise: importing this loads no framework, no client and no store.
"""
