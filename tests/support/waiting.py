"""Tell whether a thread waits in a lock's queue, also before what goes wrong around the source on purpose."""

import threading

from fencelock._drivers.shutdown import SHUTDOWN


def is_asleep_in_queue(thread: threading.Thread) -> bool:
    """Return whether a thread of this process sleeps in a lock's queue: the replies to its requests have arrived.

    The source names a waiter before that, while the reply to its acquire is still on its way. An outage then loses the
    reply, and the acquire fails as any acquire does at a source that is away.
    """
    return thread.ident in SHUTDOWN.waiting
