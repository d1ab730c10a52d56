"""Channels of a lease for blocking code.

Promise: the service is sealed before the first call is sent. What a call returns behaves as gRPC's own, with
`with_call`, futures and streams. A stream's first message is given out only after the marks that came before it.
"""

from types import TracebackType
from typing import Any, Self

import grpc

from fencelock._api.credentials import LeaseLike
from fencelock.grpc.clients.rules import CallRules, OwnSeal, key_in
from fencelock.grpc.clients.targets import Options, open_channel
from fencelock.grpc.method_and_metadata import SEAL_METHOD


def channel(
    lease: LeaseLike,
    target: str,
    credentials: grpc.ChannelCredentials | None = None,
    *,
    options: Options = (),
    compression: grpc.Compression | None = None,
    insecure: bool = False,
    independent: bool = False,
) -> grpc.Channel:
    """Open a channel whose calls carry the lease's sequencer, and whose answers are believed only if they are fenced.

    `credentials` are those of a `grpc.secure_channel`. Without them the target is this machine, or ConfigError, since a
    token is a secret; `insecure=True` sends it unencrypted to others too. Calls raise what a guard would raise,
    StaleTokenError above all; UnfencedWriteError for an answer that no guard has admitted; OutcomeUnknownError if the
    call may have been executed; SourceUnavailableError if it was not sent; and `grpc.RpcError` for a status of the
    handler's own. `independent` as for `fencelock.guard`. `with` closes the channel.
    """
    rules = CallRules(lease, target, options, independent=independent)
    native = open_channel(grpc, target, credentials, options, insecure=insecure, compression=compression)
    return grpc.intercept_channel(native, FencedCalls(rules, native))


def seal(channel: grpc.Channel) -> None:
    """Seal a service before its first call, because another one is read before: all are sealed first.

    `channel` is of `fencelock.grpc.channel`. StaleTokenError, as any guard's, and UnsupportedError if the service has
    no interceptor of fencelock's.
    """
    channel.unary_unary(SEAL_METHOD)(b"")


class FencedCallDetails(grpc.ClientCallDetails):
    """The details of a call with other metadata."""

    def __init__(self, details: Any, metadata: list[tuple[str, str | bytes]]) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = metadata
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class FencedCalls(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Sends the lease's sequencer with each call, and a seal before the first."""

    def __init__(self, rules: CallRules, native: grpc.Channel) -> None:
        self._rules = rules
        self._seal = grpc.intercept_channel(native, self).unary_unary(SEAL_METHOD)

    def _intercept(self, continuation: Any, client_call_details: Any, request: Any) -> "FencedCall":
        details = client_call_details
        if details.method != SEAL_METHOD:
            self._seal_first(details)
            return self._send(continuation, details, request, is_seal=False)
        self._rules.check_may_seal()
        if isinstance(request, OwnSeal):
            return self._send(continuation, details, b"", is_seal=True)
        with self._rules.turn(details.timeout):
            call = self._send(continuation, details, request, is_seal=True)
            call.result()
        return call

    def _send(self, continuation: Any, details: Any, request: Any, *, is_seal: bool) -> "FencedCall":
        with self._rules.sending(details.metadata) as metadata:
            native = continuation(FencedCallDetails(details, metadata), request)
        return FencedCall(native, self._rules, key_in(metadata), details.method, is_seal=is_seal)

    intercept_unary_unary = _intercept
    intercept_unary_stream = _intercept
    intercept_stream_unary = _intercept
    intercept_stream_stream = _intercept

    def _seal_first(self, details: Any) -> None:
        """Seal the service before the first call, unless another thread or channel of the lease does."""
        if not self._rules.is_sealed():
            with self._rules.turn(details.timeout):
                # Asked again: another thread may have sealed the service while this one waited for its turn.
                if not self._rules.is_sealed():
                    more = {"credentials": details.credentials, "wait_for_ready": details.wait_for_ready}
                    self._seal(OwnSeal(), timeout=details.timeout, **more)


class FencedCall:
    """A call as gRPC returns it, whose result, exception and messages are judged before they are given out."""

    def __init__(self, native: Any, rules: CallRules, key: str | None, method: str, *, is_seal: bool) -> None:
        self._native = native
        self._rules = rules
        self._key = key
        self._method = method
        self._is_seal = is_seal
        self._is_believed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def result(self, timeout: float | None = None) -> Any:
        """Return the response once it is there; raise what the call's status means."""
        try:
            response = self._native.result(timeout)
        except grpc.RpcError as error:
            raise self._rules.error(error, key=self._key, method=self._method, is_seal=self._is_seal) from error
        self._check_end()
        return response

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what `result` raises; None if it returns a response."""
        try:
            self.result(timeout)
        except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
            raise
        except Exception as error:
            return error
        return None

    def traceback(self, timeout: float | None = None) -> TracebackType | None:
        """Return the traceback of what `result` raises."""
        error = self.exception(timeout)
        return None if error is None else error.__traceback__

    def add_done_callback(self, callback: Any) -> None:
        """Call `callback` with this call when it is done."""
        self._native.add_done_callback(lambda _: callback(self))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            message = next(self._native)
        except StopIteration:
            self._check_end()
            raise
        except grpc.RpcError as error:
            raise self._rules.error(error, key=self._key, method=self._method, is_seal=False) from error
        if not self._is_believed:
            self._check_begin()
        return message

    next = __next__

    def _check_begin(self) -> None:
        try:
            self._rules.check_answer(self._native.initial_metadata(), method=self._method, is_seal=False)
        except BaseException:
            # Nobody reads the rest of a stream whose beginning is not believed.
            self._native.cancel()
            raise
        self._is_believed = True

    def _check_end(self) -> None:
        received = (self._native.initial_metadata(), self._native.trailing_metadata())
        self._rules.check_answer(*received, method=self._method, is_seal=self._is_seal)


grpc.Call.register(FencedCall)
grpc.Future.register(FencedCall)
