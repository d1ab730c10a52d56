"""Other lock libraries and hand-written locks, side by side with fencelock on the same private server.

Each contender runs in its own process, which carries out one command at a time. So contenders take turns within one
run, and none shares threads or memory with another. The page says beside each number what the contender lacks.
"""
