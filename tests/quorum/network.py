"""A network of a test's own: hosts that are network namespaces on one bridge, which the test reaches, and can part.

Nothing of the machine's own network is touched but for one interface that ends with the network.
"""

import itertools
import os
import pwd
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from fencelock_lab.servers.programs import Wrap
from tests.servers import need, refuse

_PREFIX = "fencelock-test-"
_NUMBERS = itertools.count()
_NAMESPACES = Path("/run/netns")


class Network:
    """`size` hosts, numbered from 0, on a network of 254 addresses. Use it in a `with` block."""

    def __init__(self, size: int) -> None:
        self._ip, self._iptables = need("ip"), need("iptables")
        if os.geteuid() != 0:
            refuse("network namespaces need root")
        number = next(_NUMBERS)
        self._name = f"{_PREFIX}{os.getpid()}-{number}"
        # A network of its own for each process: two test runs may go on at the same time.
        self._net = f"10.231.{(os.getpid() + number) % 256}"
        self._interface = f"fl{os.getpid()}-{number}"[:15]
        self.addresses = [f"{self._net}.{host + 1}" for host in range(size)]

    def __enter__(self) -> Self:
        _remove_abandoned(self._ip)
        try:
            self._build()
        except subprocess.CalledProcessError as error:
            self._remove()
            refuse(f"this kernel or these rights allow no network namespaces: {error.stderr.strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def wrap(self, host: int) -> Wrap:
        """Return what turns a command into one that runs on a host, as an ordinary user, in a process of its own."""
        nobody = pwd.getpwnam("nobody")
        drop = [need("setpriv"), f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
        return lambda command: self._command(host, *drop, *command)

    def _command(self, host: int, *command: str | Path) -> list[str | Path]:
        return [self._ip, "netns", "exec", self._host(host), *command]

    def isolate(self, host: int) -> None:
        """Part a host from all others, not from the test: what they send each other vanishes, as on a cut cable."""
        for other in set(self.addresses) - {self.addresses[host]}:
            self._filter(host, "-A", "INPUT", "-s", other, "-j", "DROP")
            self._filter(host, "-A", "OUTPUT", "-d", other, "-j", "DROP")

    def join(self, host: int) -> None:
        """Let a host reach the others again."""
        self._filter(host, "-F")

    def _host(self, host: int) -> str:
        return f"{self._name}-{host}"

    def _build(self) -> None:
        hub = self._name
        self._run("netns", "add", hub)
        self._run("-n", hub, "link", "add", "bridge", "type", "bridge")
        self._run("-n", hub, "link", "set", "bridge", "up")
        self._run("link", "add", self._interface, "type", "veth", "peer", "name", "test", "netns", hub)
        self._run("address", "add", f"{self._net}.254/24", "dev", self._interface)
        self._run("link", "set", self._interface, "up")
        self._run("-n", hub, "link", "set", "test", "master", "bridge", "up")
        for host, address in enumerate(self.addresses):
            name = self._host(host)
            self._run("netns", "add", name)
            self._run("-n", hub, "link", "add", f"host{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
            self._run("-n", hub, "link", "set", f"host{host}", "master", "bridge", "up")
            self._run("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            self._run("-n", name, "link", "set", "eth0", "up")
            self._run("-n", name, "link", "set", "lo", "up")
            self._filter(host, "-L", "-n")

    def _remove(self) -> None:
        # The interfaces of a namespace go with it, a moment later; the test's own goes at once.
        with suppress(subprocess.CalledProcessError):
            self._run("link", "delete", self._interface)
        for name in [*(self._host(host) for host in range(len(self.addresses))), self._name]:
            with suppress(subprocess.CalledProcessError):
                self._run("netns", "delete", name)

    def _filter(self, host: int, *arguments: str) -> None:
        _run(*self._command(host, self._iptables, *arguments))

    def _run(self, *arguments: str) -> None:
        _run(self._ip, *arguments)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _remove_abandoned(ip: str) -> None:
    """Remove what a killed test run has left."""
    for path in _NAMESPACES.glob(f"{_PREFIX}*") if _NAMESPACES.is_dir() else ():
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            with suppress(subprocess.CalledProcessError):
                _run(ip, "netns", "delete", path.name)
