"""The lock libraries on MySQL and MariaDB."""

from urllib.parse import urlsplit

from fencelock_lab.benchmarks.peers.contender import Calls, Contender, ContenderLock
from fencelock_lab.benchmarks.peers.ours import OURS
from fencelock_lab.benchmarks.peers.postgres import _tooz


def _by_hand(url: str, _name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.mysql import MySQLHandWrittenLock

    lock = MySQLHandWrittenLock(url)
    return Calls(lock.take, lock.free)


def _get_lock(url: str, name: str) -> ContenderLock:
    import pymysql

    parts = urlsplit(url)
    connection = pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=parts.username, password=parts.password or ""
    )
    cursor = connection.cursor()
    return Calls(
        lambda: cursor.execute("SELECT GET_LOCK(%s, 600)", (name,)),
        lambda: cursor.execute("SELECT RELEASE_LOCK(%s)", (name,)),
    )


IMPORTS = ("pymysql", "tooz.coordination", "tooz.drivers.mysql")
CONTENDERS = [
    Contender("two statements by hand", _by_hand, "no waiting, no renewal, no rights", can_wait=False),
    *OURS,
    Contender("GET_LOCK by hand", _get_lock, "no token, no lease: held by a connection that nothing watches"),
    Contender("tooz", _tooz, "no token, no lease; connects anew for each acquire, polls", can_wait=False),
]
