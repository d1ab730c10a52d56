"""The one background thread per process that renews leases, ends them in time, and abandons interrupted claims.

`record.py` holds the state of one lease, `schedule.py` decides which leases are due (pure), `keeper.py` is the thread,
`callback_thread.py` runs the users' callbacks in another one, `lifecycle.py` starts the keeper and handles fork and
exit.
"""
