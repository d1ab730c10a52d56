"""A guard over a target in memory whose client speaks asyncio: replies come one tick of the loop after requests."""

import asyncio
from collections import deque
from dataclasses import replace

from tests.conformance.memory_guard import InTarget, MemoryGuard


class TaskSession:
    """A connection of a task."""

    def __init__(self, session):
        self.session = session
        self.native = session.native
        self.map_error = session.map_error
        self.close = session.close

    async def perform(self, request):
        reply = self.session.perform(request)
        await asyncio.sleep(0)
        return reply

    async def rollback(self):
        self.session.rollback()


class OneReplyBehind(TaskSession):
    """A connection that is kept though its task was cancelled between a request and its reply."""

    async def perform(self, request):
        target = self.session.target
        target.replies = getattr(target, "replies", deque())
        target.replies.append(self.session.perform(request))
        await asyncio.sleep(0)
        return target.replies.popleft()


class InTaskTarget(InTarget):
    """How the kit reaches the target through asyncio."""

    task_session_type = TaskSession

    def make_store(self, url):
        return AsyncioGuard(url, self.task_session_type)


class AsyncioGuard(MemoryGuard):
    """The guard's store."""

    capabilities = replace(MemoryGuard.capabilities, speaks_asyncio=True)

    def __init__(self, url, task_session_type):
        super().__init__(url)
        self.task_session_type = task_session_type

    def connect_async(self):
        return self.task_session_type(self.connect())

    def async_caller_connection(self, native):
        return self.task_session_type(self.caller_connection(native))
