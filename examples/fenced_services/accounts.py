"""A service that keeps a balance. PostgreSQL decides who may write it."""

import os
from typing import Annotated

from fastapi import Body, FastAPI

import fencelock
from fencelock.http import FencingMiddleware, once, sequencer

guard = fencelock.guard(os.environ["ACCOUNTS_URL"], resource="balance", lock="nightly")

app = FastAPI()
app.add_middleware(FencingMiddleware, lock="nightly", guards=[guard])


@app.get("/balance")
def read() -> int:
    with guard.transaction(sequencer()) as connection:
        return connection.execute("SELECT amount FROM balance").fetchone()[0]


@app.put("/balance")
def write(amount: Annotated[int, Body()]) -> None:
    # Once for each Idempotency-Key: a day that was booked before is not booked again.
    with guard.transaction(sequencer(), once=once()) as connection:
        connection.execute("UPDATE balance SET amount = %s", (amount,))
