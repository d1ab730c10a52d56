"""The nightly job: add a day's takings to the balance, and report them.

`nightly.py DAY TAKINGS [--freeze]`
"""

import logging
import os
import signal
import sys

import httpx

import fencelock
import fencelock.http

ACCOUNTS, REPORTS = os.environ["ACCOUNTS"], os.environ["REPORTS"]
TTL_S = 1.0
"""Short, so that nobody waits for long in an example. A real job has a minute."""
TIMEOUT_S = 60.0
"""The services may be starting still."""
day, takings, *freeze = sys.argv[1:]


def say(text: str) -> None:
    print(f"{day:8} {text}", flush=True)


def reach(service: str, sequencer: fencelock.Sequencer) -> httpx.Client:
    """Return a client that sends the sequencer with each request."""
    return fencelock.http.client(sequencer, httpx.Client(base_url=service, timeout=TIMEOUT_S))


def work(sequencer: fencelock.Sequencer) -> None:
    """Do the day's work, all of it in one tenure."""
    with reach(ACCOUNTS, sequencer) as accounts, reach(REPORTS, sequencer) as reports:
        for service in (accounts, reports):  # Both, before anything is read from either.
            service.post("/.well-known/fencing/seal")
        before = accounts.get("/balance").json()
        after = before + int(takings)
        say(f"has token {sequencer.token}, seals both services, and reads {before}")
        if freeze:
            freeze.clear()
            say("freezes")
            os.kill(os.getpid(), signal.SIGSTOP)
            say("wakes")
        say(f"writes {after}")
        accounts.put("/balance", json=after, headers={"Idempotency-Key": day})
        reports.put(f"/reports/{day}", json=int(takings))
        say("is done")


def show(sequencer: fencelock.Sequencer) -> None:
    """Show what a service answers to the stale token, whichever program sends it."""
    fields = {"Fencing-Token": f'"{sequencer}"', "Idempotency-Key": day}
    answer = httpx.put(f"{ACCOUNTS}/balance", json=0, headers=fields)
    say(f"{answer.status_code} {answer.reason_phrase}, {answer.headers['content-type']}")
    for name, value in answer.json().items():
        say(f"    {name}: {value}")


# The story tells of losses and refusals itself.
logging.getLogger("fencelock").setLevel(logging.ERROR)
source = fencelock.connect(os.environ["LOCKS_URL"])
is_done = False
while not is_done:
    try:
        with source.lock("nightly", ttl=TTL_S) as lease:
            # A sequencer has no deadline: only the services judge it.
            work(lease.sequencer)
            is_done = True
    except fencelock.StaleTokenError:
        say("is refused. It drops all that it has read, and begins again")
        show(lease.sequencer)
    except fencelock.LeaseError:
        pass  # The lease ended after the services had accepted everything.
source.close()
