"""Where an answer comes from: errors before and after its head, streamed bodies, layers of middleware, other scopes."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import fencelock.aio
import fencelock.http
from fencelock import ConfigError, GuardError, OutcomeUnknownError, SourceUnavailableError, StaleTokenError
from fencelock.http import FencingMiddleware, WSGIFencingMiddleware, init_flask, init_litestar, sequencer
from fencelock.http.asgi import MAX_HELD_BYTES
from fencelock.http.service import FencedRequest, answering
from tests.http.frameworks import Report, bare_asgi, bare_wsgi, flask_app, litestar_app, starlette_app
from tests.http.wire import UNANSWERED, fields_of, over_asgi, over_wsgi, scope_of
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, make_file, plain, raised_for, url_of, value_in

HEAD = {"type": "http.response.start", "status": 200, "headers": []}
FAILED = {"type": "http.response.start", "status": 500, "headers": []}


def stale() -> StaleTokenError:
    """Return the refusal of token 5."""
    return raised_for(StaleTokenError("refused", token=5, mark=6, resource=RESOURCE), HandmadeLease(5))


def body(text: bytes = b"x", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


def playing(*messages: Any) -> Any:
    """Return an application that sends these messages, and raises the errors among them."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        for message in messages:
            if isinstance(message, Exception):
                raise message
            await send(message)

    return FencingMiddleware(app)


# --- errors before and after the head ---------------------------------------------------------------------------------
def test_an_error_after_a_500_takes_the_place_of_that_answer() -> None:
    """As Starlette, which answers and raises."""
    reply = over_asgi(playing(FAILED, body(), stale())).call("PUT", "/", HandmadeLease(5))
    assert (reply.status, reply.kind, reply.error) == (412, "stale-token", None)


def test_a_500_without_an_error_is_sent_when_the_application_ends() -> None:
    reply = over_asgi(playing(FAILED, body(more=True), body())).call("PUT", "/", HandmadeLease(5))
    assert (reply.status, reply.body) == (500, b"xx")


def test_a_500_and_an_error_of_the_handlers_own_are_both_the_servers() -> None:
    reply = over_asgi(playing(FAILED, body(), ZeroDivisionError())).call("PUT", "/", HandmadeLease(5))
    assert reply.status == 500
    assert isinstance(reply.error, ZeroDivisionError)


def test_a_long_500_is_not_kept_in_memory() -> None:
    long = body(b"x" * (MAX_HELD_BYTES + 1), more=True)
    reply = over_asgi(playing(FAILED, long, stale())).call("PUT", "/", HandmadeLease(5))
    assert reply.status == 500
    assert isinstance(reply.error, StaleTokenError)


@pytest.mark.parametrize("parts", [(), (body(more=True),)], ids=["head", "body"])
def test_an_error_after_the_head_ends_the_connection(parts: Any) -> None:
    reply = over_asgi(playing(HEAD, *parts, stale())).call("PUT", "/", HandmadeLease(5))
    assert reply.status == 200
    assert isinstance(reply.error, StaleTokenError)


def test_a_wsgi_head_waits_for_the_first_part_of_the_body() -> None:
    def app(_: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        raise stale()

    def generator(_: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        if sequencer().token:
            raise stale()
        yield b"never"

    for application in (app, generator):
        reply = over_wsgi(WSGIFencingMiddleware(application)).call("PUT", "/", HandmadeLease(5))
        assert (reply.status, reply.kind) == (412, "stale-token")


def test_a_wsgi_error_after_the_head_is_the_servers() -> None:
    def app(_: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        yield b"x"
        raise stale()

    reply = over_wsgi(WSGIFencingMiddleware(app)).call("PUT", "/", HandmadeLease(5))
    assert isinstance(reply.error, StaleTokenError)


def test_a_wsgi_body_is_closed_also_if_nobody_reads_it() -> None:
    closed = []

    class Parts:
        def __iter__(self) -> Any:
            return iter([b"x"])

        def close(self) -> None:
            closed.append(sequencer().token)

    def app(_: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return Parts()

    environ = {"REQUEST_METHOD": "PUT", "HTTP_FENCING_TOKEN": fields_of(HandmadeLease(5))[0][1]}
    answer: Any = WSGIFencingMiddleware(app)(environ, lambda *_: lambda _: None)
    answer.close()
    assert closed == [5]


def test_what_wsgi_writes_at_once_has_the_completed_head() -> None:
    def app(_: Any, start_response: Any) -> Any:
        write = start_response("200 OK", [("Cache-Control", "public")])
        write(b"a")
        return [b"b"]

    reply = over_wsgi(WSGIFencingMiddleware(app)).call("PUT", "/", HandmadeLease(5))
    assert (reply.body, reply.field("cache-control")) == (b"ab", "no-store")


def test_a_wsgi_application_may_replace_a_head_that_was_not_sent() -> None:
    def app(_: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        start_response("404 Not Found", [], (None, None, None))
        return []

    assert over_wsgi(WSGIFencingMiddleware(app)).call("PUT", "/", HandmadeLease(5)).status == 404


# --- a guard that is used too late for the head -----------------------------------------------------------------------
def test_a_guard_is_not_opened_after_the_head(report: Report) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        carried = sequencer()
        await send(HEAD)
        with report.guard.transaction(carried):
            await send(body())

    service = over_asgi(FencingMiddleware(app))
    lease = HandmadeLease(5)
    report.guard.seal(lease)
    for sealed in ((), [mark.seal_id for mark in told(report, lease)]):
        error = service.call("PUT", "/", lease, sealed).error
        assert isinstance(error, GuardError)
        assert "after the answer has begun" in str(error)


def told(report: Report, lease: HandmadeLease) -> Any:
    """Return the marks of a request that the report's guard has admitted."""
    return over_asgi(FencingMiddleware(bare_asgi(report))).call("GET", "/report", lease).marks


def test_a_streamed_read_may_use_what_was_opened_before_its_head(report: Report) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        with report.guard.transaction(sequencer()):
            await send(HEAD)
            for _ in range(3):
                await send(body(more=True))
        await send(body(b""))

    reply = over_asgi(FencingMiddleware(app)).call("GET", "/", HandmadeLease(5))
    assert (len(reply.marks), reply.body, reply.error) == (1, b"xxx", None)
    assert over_asgi(FencingMiddleware(app)).call("PUT", "/", HandmadeLease(5)).kind == "guard-refused"


def test_a_mark_that_an_error_may_have_undone_is_told_with_a_success_only(report: Report) -> None:
    """`guard.seal(…, connection=…)` raises it in the handler's own transaction."""
    carried = fencelock.http.CarriedSequencer(HandmadeLease(5).sequencer)
    carried.tenure.begin_reading(report.guard._core.scope.keys)
    assert carried.begin_answer(is_success=False) == ()
    assert len(carried.begin_answer(is_success=True)) == 1


# --- layers -----------------------------------------------------------------------------------------------------------
def test_layers_with_several_locks_each_refuse_anothers_holder(report: Report) -> None:
    for outer, inner, status in ((None, LOCK, 200), (LOCK, LOCK, 200), ("another", LOCK, 403), (LOCK, "another", 403)):
        asgi = FencingMiddleware(FencingMiddleware(bare_asgi(report), lock=inner), lock=outer)
        wsgi = WSGIFencingMiddleware(WSGIFencingMiddleware(bare_wsgi(report), lock=inner), lock=outer)
        for service in (over_asgi(asgi), over_wsgi(wsgi)):
            reply = service.call("GET", "/report", HandmadeLease(5))
            assert reply.status == status
            assert len(reply.marks) == (status == 200)


def test_mounted_applications_have_locks_of_their_own(report: Report) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = starlette_app(report)
    inner.add_middleware(FencingMiddleware, lock=LOCK, guards=[report.guard])
    outer = Starlette(routes=[Mount("/fenced", inner), Mount("/open", bare_asgi(report))])
    service = over_asgi(outer)
    assert service.call("PUT", "/fenced/report/7").kind == "token-required"
    assert service.call("PUT", "/open/unguarded").status == 404, "reached: no layer wants a token there"
    assert service.call("POST", "/fenced/.well-known/fencing/seal", HandmadeLease(5)).status == 204


def test_a_layer_around_a_mounted_application_answers_its_errors(report: Report) -> None:
    """The mounted application has an error layer of its own, inside of the middleware."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    report.raised = stale()
    outer = Starlette(routes=[Mount("/in", starlette_app(report))])
    outer.add_middleware(FencingMiddleware)
    report.answer = lambda *_: (_ for _ in ()).throw(stale())  # type: ignore[method-assign]
    assert over_asgi(outer).call("PUT", "/in/x", HandmadeLease(5)).kind == "stale-token"


def test_an_application_that_a_handler_calls_has_its_own_request(report: Report) -> None:
    """The second one must not be answered in the first one's name."""
    inner = over_asgi(FencingMiddleware(bare_asgi(report)))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        assert sequencer().token == 5
        reply = await asyncio.to_thread(inner.call, "PUT", "/report/7")
        await send({**HEAD, "status": reply.status})
        await send(body())

    assert over_asgi(FencingMiddleware(app)).call("PUT", "/", HandmadeLease(5)).status == 428


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_other_scopes_pass_untouched(kind: str) -> None:
    seen: list[Any] = []

    async def app(*passed: Any) -> None:
        seen.extend(passed)

    passed: Any = ({"type": kind, "headers": [(b"fencing-token", b"x")]}, object(), object())
    asyncio.run(FencingMiddleware(app)(*passed))  # type: ignore[func-returns-value]
    assert all(one is other for one, other in zip(seen, passed, strict=True))


def test_the_requests_body_is_the_applications_to_receive() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive))
        await send(HEAD)

    async def send(_: Any) -> None:
        pass

    receive = object()
    asyncio.run(FencingMiddleware(app)(scope_of("PUT", "/", fields_of(HandmadeLease(5))), receive, send))  # type: ignore[arg-type]
    assert seen[0][1] is receive


def test_the_servers_own_scope_keeps_its_fields() -> None:
    scope = scope_of("PUT", "/", fields_of(HandmadeLease(5)))
    before = dict(scope)

    async def send(_: Any) -> None:
        pass

    asyncio.run(playing(HEAD, body())(scope, None, send))
    assert scope == before


# --- what is refused at the start -------------------------------------------------------------------------------------
def test_an_application_that_would_swallow_a_refusal_is_not_wrapped(report: Report) -> None:
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    flask = flask_app(report)
    starts = {
        "DjangoFencingMiddleware": lambda: WSGIFencingMiddleware(WSGIHandler.__new__(WSGIHandler)),
        "DjangoFencingMiddleware.*MIDDLEWARE": lambda: FencingMiddleware(ASGIHandler.__new__(ASGIHandler)),
        "init_flask": lambda: WSGIFencingMiddleware(flask.wsgi_app),
        "init_flask.*instead": lambda: WSGIFencingMiddleware(WSGIFencingMiddleware(flask)),
        "init_litestar": lambda: FencingMiddleware(litestar_app(report)),
    }
    for remedy, start in starts.items():
        with pytest.raises(ConfigError, match=remedy):
            start()


def test_an_application_for_asgi_is_not_wrapped_for_wsgi(report: Report) -> None:
    for wrap in (WSGIFencingMiddleware, init_flask):
        for app in (starlette_app(report), bare_asgi(report)):
            with pytest.raises(ConfigError, match=r"add_middleware\(fencelock\.http\.FencingMiddleware"):
                wrap(app)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"function.*WSGIFencingMiddleware\(app"):
        init_flask(bare_wsgi(report))


def test_an_application_that_answers_refusals_may_be_wrapped_once_more(report: Report) -> None:
    flask = flask_app(report)
    init_flask(flask)
    report.raised = stale()
    for service in (
        over_wsgi(WSGIFencingMiddleware(flask.wsgi_app)),
        over_asgi(FencingMiddleware(litestar_app(report, init_litestar()))),
    ):
        assert service.call("PUT", "/raise", HandmadeLease(5)).kind == "stale-token"


def test_flasks_answer_to_a_stale_write_after_the_view_is_its_own_500(report: Report) -> None:
    flask = flask_app(report)
    init_flask(flask)

    @flask.after_request
    def write(answer: Any) -> Any:
        report.guard.seal(sequencer())
        return answer

    assert over_wsgi(flask).call("PUT", "/report/7", HandmadeLease(6)).status == 200
    reply = over_wsgi(flask).call("GET", "/status", HandmadeLease(5))
    assert (reply.status, reply.kind) == (500, None)


def test_litestars_middleware_without_its_error_handler_answers_no_request(report: Report) -> None:
    service = over_asgi(litestar_app(report, middleware=[FencingMiddleware]))
    reply = service.call("PUT", "/report/7", HandmadeLease(5))
    assert reply.status >= 500
    assert value_in(report.path) == 0


@pytest.mark.parametrize(
    "options",
    [{"lock": ""}, {"lock": 1}, {"required": True}, {"guards": ["sqlite:///x.db"]}, {"guards": ...}],
    ids=["empty lock", "lock", "required", "guards", "one guard"],
)
def test_options_outside_their_contract_are_refused(report: Report, options: Any) -> None:
    if options.get("guards") is ...:
        options = {"guards": report.guard}
    for wrap, app in ((FencingMiddleware, bare_asgi(report)), (WSGIFencingMiddleware, bare_wsgi(report))):
        with pytest.raises(ConfigError):
            wrap(app, **options)  # type: ignore[operator]


def test_a_wsgi_seal_route_takes_no_async_guard(report: Report) -> None:
    guard = fencelock.aio.guard(report.guard.url, resource=RESOURCE, lock=LOCK)
    with pytest.raises(ConfigError, match="synchronous"):
        WSGIFencingMiddleware(bare_wsgi(report), guards=[guard])
    service = over_asgi(FencingMiddleware(bare_asgi(report), guards=[guard]))
    assert len(service.call("POST", "/.well-known/fencing/seal", HandmadeLease(5)).marks) == 1
    assert service.call("POST", "/.well-known/fencing/seal", HandmadeLease(4)).kind == "stale-token"


def test_the_seal_route_is_for_the_locks_of_its_guards(report: Report) -> None:
    service = over_asgi(FencingMiddleware(bare_asgi(report), guards=[report.guard]))
    other = fencelock.guard(report.guard.url, resource="other", lock="another")
    refused = service.call("POST", "/.well-known/fencing/seal", HandmadeLease(5, lock="another"))
    assert refused.kind == "wrong-lock"
    assert f"acquire lock {LOCK!r}" in str(refused.problem)
    assert other.mark().token == 0


def test_a_service_without_guards_has_no_seal_route(report: Report) -> None:
    service = over_asgi(FencingMiddleware(bare_asgi(report)))
    assert service.call("POST", "/.well-known/fencing/seal", HandmadeLease(5)).status == 404


def test_the_service_says_which_requests_need_a_token(report: Report) -> None:
    asked = []

    def required(method: str, path: str) -> bool:
        asked.append((method, path))
        return path == "/report"

    for service in (
        over_asgi(FencingMiddleware(bare_asgi(report), required=required)),
        over_wsgi(WSGIFencingMiddleware(bare_wsgi(report), required=required)),
    ):
        assert service.call("GET", "/report").kind == "token-required"
        assert service.call("PUT", "/unguarded").status == 200
    assert asked == [("GET", "/report"), ("PUT", "/unguarded")] * 2


# --- what is told of which error --------------------------------------------------------------------------------------
def test_another_leases_staleness_is_not_the_callers(report: Report) -> None:
    """A service that is a client itself has met it: the caller would give up a lease that is fine."""
    report.raised = stale()
    service = over_asgi(FencingMiddleware(bare_asgi(report)))
    assert service.call("PUT", "/raise", HandmadeLease(5)).status == 412
    assert service.call("PUT", "/raise", HandmadeLease(6)).status == UNANSWERED


def test_a_retry_is_not_asked_for_after_an_earlier_block(report: Report) -> None:
    """The first block may be committed: a retry of the request would do it again."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        for _ in range(1 if scope["path"] == "/one" else 2):
            with report.guard.transaction(sequencer()):
                pass
        with report.guard.transaction(sequencer()):
            raise raised_for(SourceUnavailableError("gone"), sequencer())

    async def first(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive, send
        report.guard.seal(sequencer())
        with report.guard.transaction(sequencer()):
            raise raised_for(SourceUnavailableError("gone"), sequencer())

    reply = over_asgi(FencingMiddleware(app)).call("PUT", "/one", HandmadeLease(5))
    assert (reply.status, reply.kind) == (504, "outcome-unknown")
    assert isinstance(reply.problem, OutcomeUnknownError)
    assert over_asgi(FencingMiddleware(first)).call("PUT", "/", HandmadeLease(5)).kind == "unavailable"


def test_a_retry_is_not_asked_for_after_a_block_that_ran_beside(report: Report, tmp_path: Path) -> None:
    """Two tasks begin their blocks before either is admitted, and one of them is committed."""
    paths = report.path, make_file(tmp_path / "beside.db")
    guards = [fencelock.aio.guard(url_of(path), resource=RESOURCE, lock=LOCK, independent=True) for path in paths]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive, send
        is_written = asyncio.Event()

        async def write() -> None:
            async with guards[0].transaction(sequencer()) as connection:
                connection.execute(f"UPDATE {RESOURCE} SET value = 7 WHERE id = 1")
            is_written.set()

        async def fail() -> None:
            async with guards[1].transaction(sequencer()):
                await is_written.wait()
                raise raised_for(SourceUnavailableError("gone"), sequencer())

        await asyncio.gather(write(), fail())

    reply = over_asgi(FencingMiddleware(app)).call("PUT", "/", HandmadeLease(5))
    assert (reply.status, reply.kind) == (504, "outcome-unknown")
    assert value_in(report.path) == 7


def test_a_refusal_after_an_earlier_block_is_not_definite_about_the_request(report: Report) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        if scope["path"] == "/two":
            with report.guard.transaction(sequencer()) as connection:
                connection.execute(f"UPDATE {RESOURCE} SET value = 7 WHERE id = 1")
        report.guard.seal(HandmadeLease(6))
        with report.guard.transaction(sequencer()):
            pass

    service = over_asgi(FencingMiddleware(app))
    second = service.call("PUT", "/two", HandmadeLease(5)).problem
    assert isinstance(second, StaleTokenError)
    assert not second.definite
    assert value_in(report.path) == 7
    first = service.call("PUT", "/one", HandmadeLease(5)).problem
    assert isinstance(first, StaleTokenError)
    assert first.definite


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_refusal_of_the_handlers_own_transaction_after_a_block_is_not_definite(
    report: Report, tmp_path: Path, is_async: bool
) -> None:
    """The check is refused before a block of it begins, and the one before it is committed."""
    path = make_file(tmp_path / "own.db")
    guard = fencelock.guard(url_of(path), resource=RESOURCE, lock=LOCK, independent=True)
    async_guard = fencelock.aio.guard(url_of(path), resource=RESOURCE, lock=LOCK, independent=True)
    guard.seal(HandmadeLease(6))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        if scope["path"] == "/two":
            with report.guard.transaction(sequencer()) as connection:
                connection.execute(f"UPDATE {RESOURCE} SET value = 7 WHERE id = 1")
        with plain(path) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            if is_async:
                _ = await async_guard.check(sequencer(), connection=connection)
            else:
                guard.check(sequencer(), connection=connection)

    service = over_asgi(FencingMiddleware(app))
    second, first = (service.call("PUT", blocks, HandmadeLease(5)).problem for blocks in ("/two", "/one"))
    assert value_in(report.path) == 7
    assert isinstance(second, StaleTokenError)
    assert not second.definite
    assert isinstance(first, StaleTokenError)
    assert first.definite


def test_a_missing_key_after_a_block_is_not_definite_about_the_request(report: Report) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        del receive, send
        if scope["path"] == "/late":
            with report.guard.transaction(sequencer()) as connection:
                connection.execute(f"UPDATE {RESOURCE} SET value = 7 WHERE id = 1")
        fencelock.http.once()

    service = over_asgi(FencingMiddleware(app))
    late, first = (service.call("PUT", path, HandmadeLease(5)) for path in ("/late", "/first"))
    assert (late.kind, first.kind) == ("malformed-key", "malformed-key")
    assert isinstance(late.problem, ConfigError)
    assert not late.problem.definite
    assert "Nothing was done" not in str(late.problem)
    assert value_in(report.path) == 7
    assert isinstance(first.problem, ConfigError)
    assert first.problem.definite
    assert "Nothing was done" in str(first.problem)


def test_an_answer_to_head_has_no_body(report: Report) -> None:
    service = over_asgi(FencingMiddleware(bare_asgi(report), required=lambda *_: True))
    reply = service.call("HEAD", "/report")
    assert (reply.status, reply.body) == (428, b"")


def test_a_fault_of_the_service_is_in_its_log_and_not_in_its_answer(
    report: Report, caplog: pytest.LogCaptureFixture
) -> None:
    report.raised = raised_for(SourceUnavailableError("db.internal:5432 refused"), HandmadeLease(5))
    with caplog.at_level(logging.ERROR, "fencelock"):
        reply = over_asgi(FencingMiddleware(bare_asgi(report))).call("PUT", "/raise", HandmadeLease(5))
    assert b"db.internal" not in reply.body
    assert "db.internal:5432 refused" in caplog.text
    assert "lock 'nightly-report', token 5" in caplog.text


def test_a_result_that_is_not_json_is_refused_when_it_is_set() -> None:
    """A repeated request would be answered with it as application/json."""
    with answering(FencedRequest(("PUT", "/", ""), [], [], ["key"])):
        job = fencelock.http.once()
    for result in ("hello", "{'added': 5}", "[" * 4000):
        with pytest.raises(ConfigError, match=r"json\.dumps"):
            job.result = result
    for result in ('"hello"', '{"added": 5}', ""):
        job.result = result
    assert job.result == ""


@pytest.mark.parametrize("call", [sequencer, fencelock.http.once])
def test_outside_of_a_request_there_is_nothing_to_ask(call: Any) -> None:
    with pytest.raises(ConfigError, match=r"no request is being answered.*A WebSocket is not fenced"):
        call()
    assert not fencelock.http.has_token()


def test_a_request_is_its_bytes_or_its_text() -> None:
    with answering(FencedRequest(("POST", "/", ""), (), (), ["key"])):
        assert fencelock.http.once(b"5").request_digest == fencelock.http.once("5").request_digest
        with pytest.raises(ConfigError, match=r"not int.*str\(amount\)"):
            fencelock.http.once(5)  # type: ignore[arg-type]
