"""What people pick today, and the work by hand, side by side with fencelock on the same private server.

Each contender runs in a process of its own, which does one thing at a time when it is told to; so contenders take turns
within one run, and none has the threads or the memory of another. What one does not do is printed beside its number.
"""
