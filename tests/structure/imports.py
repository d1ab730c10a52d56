"""Which module imports which, read from the source: lazy and type-only imports included.

The checks of the layering use it. It imports nothing of what it reads, so that a test can show it a made-up package
with a fault, which it must find.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "fencelock"
LAB = "fencelock_lab"
TESTS = "tests"

LAYERS = (
    (
        "errors",
        "_sequencer_text",
        "model",
        "hooks",
        "clock",
        "verifier",
        "_install",
        "_grpc_wire",
        "_platform",
        "_threads",
    ),
    ("protocol",),
    ("_flows",),
    ("stores",),
    ("_drivers",),
    ("_keeper",),
    ("_api",),
    ("", "aio"),
    ("_remote",),
    ("cli", "testing", "integrations", "http", "grpc", "messages", "s3", "__main__"),
)
"""From the bottom to the top; a module may import its own layer and those below it.

`""` is the package itself: the public names, and its async twin. Below it nobody uses them.
"""

_PURE = ("protocol", "_flows")
_IMPURE = {
    "_thread",
    "asyncio",
    "concurrent",
    "datetime",
    "multiprocessing",
    "os",
    "select",
    "selectors",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
}
_ALLOWED_CLIENTS = {
    "fencelock._grpc_wire": {"google"},
    "fencelock.cli": {"click", "rich"},
    "fencelock.grpc": {"google", "grpc"},
    "fencelock.http.django": {"asgiref", "django"},
    "fencelock.stores.aws": {"aiobotocore", "botocore"},
    "fencelock.stores.dynamodb": {"boto3"},
    "fencelock.stores.etcd": {"grpc"},
    "fencelock.stores.zookeeper": {"kazoo"},
    "fencelock.stores.mysql": {"aiomysql", "pymysql"},
    "fencelock.http.clients": {"aiohttp", "httpx", "multidict", "requests", "urllib3"},
    "fencelock.integrations.alembic": {"alembic", "sqlalchemy"},
    "fencelock.integrations.celery": {"celery"},
    "fencelock.integrations.django": {"django"},
    "fencelock.integrations.opentelemetry": {"opentelemetry"},
    "fencelock.integrations.prometheus": {"prometheus_client"},
    "fencelock.integrations.sqlalchemy": {"sqlalchemy"},
    "fencelock.stores.postgres": {"psycopg"},
    "fencelock.stores.redis": {"redis"},
    "fencelock.testing.pytest": {"psycopg", "pytest"},
}
"""Each package with clients of its own, and which."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import: in which module, at which line, of what."""

    module: str
    line: int
    target: str

    def fault(self, reason: str) -> str:
        return f"{self.module}:{self.line} imports {self.target}: {reason}"


def modules(root: Path, package: str = PACKAGE) -> dict[str, Path]:
    """Return every module under `root`, the folder of the package, by its dotted name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join((package, *(part for part in parts if part != "__init__")))
        found[name] = path
    return found


@cache
def imports(root: Path, package: str = PACKAGE) -> tuple[Import, ...]:
    """Return every import under `root`, wherever in a module it stands. The files are read once."""
    return tuple(_read_imports(root, package))


def _read_imports(root: Path, package: str) -> Iterator[Import]:
    known = modules(root, package)
    for module, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            for target in _targets(node, module, known, is_package=path.stem == "__init__"):
                yield Import(module, node.lineno, target)


def _targets(node: ast.AST, module: str, known: dict[str, Path], *, is_package: bool) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(names=names, module=origin, level=level):
            base = _absolute(origin, level, module, is_package=is_package)
            for alias in names:
                # `from fencelock import errors` imports a module, not a name of the package.
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in known else base
        case ast.Call(
            func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            yield name


def _absolute(origin: str | None, level: int, module: str, *, is_package: bool) -> str:
    if level == 0:
        return origin or ""
    base = module.split(".")
    base = base[: len(base) - level + is_package]
    return ".".join([*base, origin] if origin else base)


def _top(module: str) -> str:
    """Return the part of a module's name that decides its layer."""
    return f"{module}.".split(".")[1]


def _layer(module: str) -> int | None:
    return next((rank for rank, tops in enumerate(LAYERS) if _top(module) in tops), None)


def direction_faults(root: Path) -> list[str]:
    """Return every module without a layer, and every import that goes upwards."""
    faults = [f"{module} is in no layer" for module in modules(root) if _layer(module) is None]
    for found in imports(root):
        if found.target.split(".")[0] != PACKAGE:
            continue
        own, other = _layer(found.module), _layer(found.target)
        if own is not None and (other is None or other > own):
            faults.append(found.fault("that is above it"))
    return faults


def purity_faults(root: Path) -> list[str]:
    """Return every import in the flows of a module that does, or waits for, something."""
    return [
        found.fault("a flow yields a request instead")
        for found in imports(root)
        if _top(found.module) in _PURE and found.target.split(".")[0] in _IMPURE
    ]


PUBLIC = (
    *(f"{PACKAGE}.{name}" for name in ("aio", "errors", "hooks", "http", "protocol", "s3", "testing", "cli.plugin")),
    f"{PACKAGE}.integrations",
)
"""What the laboratory may import besides the package itself; their submodules are public too."""

_INSIDERS = ("simulator", "model", "mutants")
"""The folders of the laboratory that run, or change, the library's own parts."""


def is_private(module: str) -> bool:
    """Return whether a module of the library is not for its users."""
    if module == PACKAGE or any(f"{module}.".startswith(f"{name}.") for name in PUBLIC):
        return False
    return module.split(".", maxsplit=1)[0] == PACKAGE


def lab_faults(root: Path) -> list[str]:
    """Return every import of a private module of the library in a part of the laboratory that may have none."""
    return [
        found.fault("the laboratory uses public names only")
        for found in imports(root, LAB)
        if _top(found.module) not in _INSIDERS and is_private(found.target)
    ]


def kit_faults(root: Path) -> list[str]:
    """Return every import of a private module of the library in the conformance kits."""
    return [
        found.fault("a kit reaches the library's internals through fencelock.testing.runners")
        for found in imports(root)
        if found.module.startswith(f"{PACKAGE}.testing.conformance") and _is_internal(found.target)
    ]


def _is_internal(module: str) -> bool:
    return module.startswith((f"{PACKAGE}._", f"{PACKAGE}.stores"))


def faults_of_test_imports(root: Path, package: str) -> list[str]:
    """Return every import of the tests."""
    return [
        found.fault("tests are not installed")
        for found in imports(root, package)
        if found.target.split(".")[0] == TESTS
    ]


def client_faults(root: Path) -> list[str]:
    """Return every import from outside the standard library where none may stand."""
    faults = []
    for found in imports(root):
        origin = found.target.split(".")[0]
        allowed: set[str] = set()
        for package, clients in _ALLOWED_CLIENTS.items():
            if f"{found.module}.".startswith(f"{package}."):
                allowed |= clients
        if origin not in {PACKAGE, *sys.stdlib_module_names, *allowed}:
            faults.append(found.fault("the core needs the standard library only"))
    return faults


def circles(root: Path) -> list[list[str]]:
    """Return each group of modules that import one another, type-only imports included: Tarjan's algorithm."""
    known = modules(root)
    graph: dict[str, set[str]] = {module: set() for module in known}
    for found in imports(root):
        if found.target in known and found.target != found.module:
            graph[found.module].add(found.target)
    search = _Components(graph)
    for module in graph:
        search.visit(module)
    return sorted(sorted(group) for group in search.groups if len(group) > 1)


class _Components:
    """The strongly connected components of a graph."""

    def __init__(self, graph: dict[str, set[str]]) -> None:
        self.groups: list[list[str]] = []
        self._graph = graph
        self._lowest: dict[str, int] = {}
        self._path: list[str] = []
        self._ended: set[str] = set()

    def visit(self, node: str) -> None:
        """Find the components that can be reached from a node."""
        if node in self._lowest:
            return
        number = self._lowest[node] = len(self._lowest)
        self._path.append(node)
        for other in self._graph[node]:
            self.visit(other)
            if other not in self._ended:
                self._lowest[node] = min(self._lowest[node], self._lowest[other])
        if self._lowest[node] == number:
            start = self._path.index(node)
            self.groups.append(self._path[start:])
            self._ended.update(self._path[start:])
            del self._path[start:]
