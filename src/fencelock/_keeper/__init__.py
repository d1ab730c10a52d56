"""The one background thread per process that keeps leases alive, ends them in time, and cleans up behind interruptions.

`record.py` is what is known of one lease, `schedule.py` decides who is due (pure), `keeper.py` is the thread,
`announcer.py` runs the users' callbacks beside it, `lifecycle.py` starts it, and handles fork and exit.
"""
