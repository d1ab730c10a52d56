"""Run a generator of requests to its end, and ask for one reply: what flows, drivers and stores share.

Promise: `answer` answers each request, and whatever it raises is thrown into the generator, so that the generator
decides what an error means. Nothing is kept of an exception, which refers to the frames that it came through.
Never: a request answered twice, or an error swallowed here.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from fencelock.model import LockInfo, Mark, Protection, SourceInfo
    from fencelock.protocol import guard_requests as guard
    from fencelock.protocol import source_requests as source

Result = TypeVar("Result")
Reply = TypeVar("Reply")
# What asking is, for a source, for its driver and for a guard.
_Asked = Generator["source.SourceRequest", Any, Result]
_Driven = Generator["source.DriverRequest", Any, Result]
_Guarded = Generator["guard.GuardRequest", Any, Result]


@overload
def ask(request: "source.Now") -> _Driven[int]: ...
@overload
def ask(request: "source.Draw") -> _Driven[tuple[str, int]]: ...
@overload
def ask(request: "source.Listen") -> _Driven[None]: ...
@overload
def ask(request: "source.Wait") -> _Driven[bool]: ...
@overload
def ask(request: "source.Acquire | source.Poll") -> "_Asked[source.AcquireReply]": ...
@overload
def ask(request: "source.Renew") -> "_Asked[source.Renewed]": ...
@overload
def ask(request: "source.Release") -> "_Asked[source.Released]": ...
@overload
def ask(request: "source.Break") -> "_Asked[source.Broken | source.BlockSpent]": ...
@overload
def ask(request: "source.Inspect") -> "_Asked[LockInfo]": ...
@overload
def ask(request: "source.ReadKeys") -> "_Asked[source.Keys]": ...
@overload
def ask(request: "source.AddKey | source.RetireKey") -> _Asked[None]: ...
@overload
def ask(request: "source.Check") -> "_Asked[source.Checked]": ...
@overload
def ask(request: "source.ListLocks") -> "_Asked[tuple[LockInfo, ...]]": ...
@overload
def ask(request: "source.Purge") -> _Asked[int]: ...
@overload
def ask(request: "source.ReadSource") -> "_Asked[SourceInfo]": ...
@overload
def ask(request: "source.RaiseEpoch") -> "_Asked[SourceInfo | None]": ...
@overload
def ask(request: "source.ReserveBlock") -> _Asked[None]: ...
@overload
def ask(request: "guard.Open | guard.Present") -> _Guarded[tuple[str, ...]]: ...
@overload
def ask(request: "guard.ReadMarks") -> "_Guarded[dict[str, Mark]]": ...
@overload
def ask(request: "guard.Join | guard.WasProtected") -> _Guarded[bool]: ...
@overload
def ask(request: "guard.ReadProtections | guard.Unprotect") -> "_Guarded[tuple[Protection, ...]]": ...
@overload
def ask(request: "guard.RevokeRights") -> "_Guarded[tuple[guard.Right, ...]]": ...
@overload
def ask(request: "guard.BeginEffect | guard.ReadEffect") -> "_Guarded[guard.Effect | None]": ...
@overload
def ask(request: "guard.EndSessions | guard.PurgeEffects | guard.PurgeMarks") -> _Guarded[int]: ...
@overload
def ask(request: "guard.FindOldMarks") -> "_Guarded[tuple[Mark, ...]]": ...
@overload
def ask(request: "guard.Restore") -> _Guarded[None]: ...
@overload
def ask(request: "guard.Protect") -> "_Guarded[guard.Protected]": ...
@overload
def ask(request: "guard.InspectResources") -> "_Guarded[guard.ResourceReport]": ...
def ask(request: Any) -> Generator[Any, Any, Any]:
    """Yield one request, and return its reply with the type that belongs to the request.

    In a flow: `reply = yield from ask(Inspect("lock"))`. A request whose reply is None may be yielded as it is.
    """
    return (yield request)


def run_generator(flow: Generator[Any, Reply, Result], answer: Callable[[Any], Reply]) -> Result:
    """Run the generator to its end and return its result."""
    step: Callable[[Any], Any] = flow.send
    value: Any = None
    try:
        while True:
            request = step(value)
            try:
                value = answer(request)
                step = flow.send
            except BaseException as error:
                value = error
                step = flow.throw
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        value = None


async def run_generator_async(flow: Generator[Any, Reply, Result], answer: Callable[[Any], Awaitable[Reply]]) -> Result:
    """Run the generator to its end, waiting on the loop for each answer, and return its result."""
    step: Callable[[Any], Any] = flow.send
    value: Any = None
    try:
        while True:
            request = step(value)
            try:
                value = await answer(request)
                step = flow.send
            except BaseException as error:
                value = error
                step = flow.throw
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        value = None
