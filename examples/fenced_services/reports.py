"""A service that keeps a report for each day."""

import os
from typing import Annotated

from fastapi import Body, FastAPI

import fencelock
from fencelock.http import FencingMiddleware, sequencer

guard = fencelock.guard(os.environ["REPORTS_URL"], resource="reports", lock="nightly")

app = FastAPI()
app.add_middleware(FencingMiddleware, lock="nightly", guards=[guard])


@app.put("/reports/{day}")
def write(day: str, takings: Annotated[int, Body()]) -> None:
    with guard.transaction(sequencer()) as connection:
        connection.execute(
            "INSERT INTO report (day, takings) VALUES (%s, %s) ON CONFLICT (day) DO UPDATE SET takings = %s",
            (day, takings, takings),
        )
