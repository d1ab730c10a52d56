"""The middleware of services as a user's type checker sees it: checked by mypy --strict, never run."""

from typing import Annotated, Any, assert_type

from fastapi import Depends, FastAPI
from flask import Flask
from litestar import Litestar
from starlette.applications import Starlette
from starlette.middleware import Middleware

import fencelock
import fencelock.aio
import fencelock.http
from fencelock.http import CarriedSequencer, FencingMiddleware, init_flask, init_litestar, once, sequencer

guard = fencelock.guard("sqlite:///app.db", resource="reports", lock="nightly-report")
async_guard = fencelock.aio.guard("sqlite:///app.db", resource="reports", lock="nightly-report")


def is_a_report(method: str, path: str) -> bool:
    return method == "PUT" and path.startswith("/report")


def with_asgi_frameworks() -> FencingMiddleware:
    api = FastAPI()
    api.add_middleware(FencingMiddleware, lock="nightly-report", guards=[guard, async_guard], required=is_a_report)
    Litestar([], on_app_init=[init_litestar(lock="nightly-report")])
    return FencingMiddleware(Starlette(middleware=[Middleware(FencingMiddleware)]))


def with_flask(app: Flask) -> None:
    init_flask(app, guards=[guard])


class ReportFencing(fencelock.http.DjangoFencingMiddleware):
    lock = "nightly-report"
    guards = (guard,)

    def required(self, method: str, path: str) -> bool:
        return is_a_report(method, path)


def in_a_handler(lease: Annotated[CarriedSequencer, Depends(sequencer)], body: bytes) -> int:
    assert_type(sequencer(), CarriedSequencer)
    job = assert_type(once(body), fencelock.Once)
    with guard.transaction(lease, once=job) as connection:
        assert_type(connection, Any)
    guard.seal(lease)
    return assert_type(lease.token, int)


async def in_an_asynchronous_handler(body: bytes) -> None:
    async with async_guard.transaction(sequencer(), once=once(body)):
        pass
