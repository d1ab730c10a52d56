"""Servers that a campaign starts itself, to do to them what it never does to a user's: kill, freeze, isolate, restore.

Promise: each server is private: its folder, its ports on 127.0.0.1 and its processes are its own, a service of the
machine is neither asked nor touched, and nothing of it is left in the end, however the campaign ends.
"""
