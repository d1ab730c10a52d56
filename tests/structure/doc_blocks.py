"""The code in the documents, taken out so that it can be run.

A page is done from top to bottom in one folder, as its reader does it. Every ```python block is run. The
blocks of one file are pasted into one interpreter, so that a page can build up an example; `<!-- fresh -->`
on a line before a block begins a new one.

A ```console block is run if `<!-- run -->` stands on a line before it: each line that begins with
`$ ` by the shell. The lines below a command are what it prints; `…` in
them stands for anything, and so does a line of its own for any lines.

A ```console block after `<!-- service -->` calls a service: tests/languages runs it, with the service's URL in SERVICE.

A page with the line `<!-- postgres -->` is run with an empty database `app` on a PostgreSQL server, which
libpq's environment variables name: `postgresql:///app`, and `psql`, lead there.

A page with the line `<!-- mysql -->` is run with an empty database `app` on a MariaDB server, which the
environment variables of its own programs name: `mysql://root@/app`, and `mariadb`, lead there.

A page with the line `<!-- etcd -->`, or `<!-- zookeeper -->`, is run with an empty server of that kind, whose address
is in ETCD_SERVERS, or ZOOKEEPER_SERVERS: `etcd://$ETCD_SERVERS` leads there, and so does `etcdctl`.

A page with the line `<!-- s3 -->` is run with an empty bucket `fencelock` at an emulator of S3, whose address is in
S3_ENDPOINT; credentials are in the environment.

A page with the line `<!-- dynamodb -->` is run with an empty emulator of DynamoDB, whose
endpoint is in DYNAMODB_ENDPOINT: `dynamodb://eu-central-1/table?endpoint=$DYNAMODB_ENDPOINT` leads there.

A page with the line `<!-- redis -->` is run with an empty Redis server, whose address is in REDIS_SERVER:
`redis://$REDIS_SERVER` leads there.

A page with the line `<!-- nats -->` is run with an empty NATS server with JetStream, whose URL is in NATS_URL.

A ```python block after `<!-- file: NAME -->` is no program of the page: it is what its console session
finds in the file NAME, which the text before it names too.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^(?P<indent>[ ]*)```(?P<language>\w+)\n"
    r"(?P<body>.*?)"
    r"^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r"<!-- (?P<mark>fresh|run|service|file: [\w./-]+) -->\s*\Z")
_FILE = "file: "
_NEEDS_POSTGRES = "\n<!-- postgres -->\n"
_NEEDS_MYSQL = "\n<!-- mysql -->\n"
_NEEDS_ETCD = "\n<!-- etcd -->\n"
_NEEDS_ZOOKEEPER = "\n<!-- zookeeper -->\n"
_NEEDS_S3 = "\n<!-- s3 -->\n"
_NEEDS_DYNAMODB = "\n<!-- dynamodb -->\n"
_NEEDS_REDIS = "\n<!-- redis -->\n"
_NEEDS_NATS = "\n<!-- nats -->\n"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, the mark before it, the line it begins on, its text."""

    language: str
    mark: str | None
    line: int
    body: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console block, and what it has to print."""

    line: int
    text: str
    output: str


def needs_postgres(document: str) -> bool:
    """Tell whether the page is run with a PostgreSQL server."""
    return _NEEDS_POSTGRES in document


def needs_mysql(document: str) -> bool:
    """Tell whether the page is run with a MariaDB server."""
    return _NEEDS_MYSQL in document


def needs_etcd(document: str) -> bool:
    """Tell whether the page is run with an etcd server."""
    return _NEEDS_ETCD in document


def needs_zookeeper(document: str) -> bool:
    """Tell whether the page is run with a ZooKeeper server."""
    return _NEEDS_ZOOKEEPER in document


def needs_s3(document: str) -> bool:
    """Tell whether the page is run with an emulator of S3."""
    return _NEEDS_S3 in document


def needs_dynamodb(document: str) -> bool:
    """Tell whether the page is run with an emulator of DynamoDB."""
    return _NEEDS_DYNAMODB in document


def needs_redis(document: str) -> bool:
    """Tell whether the page is run with a Redis server."""
    return _NEEDS_REDIS in document


def needs_nats(document: str) -> bool:
    """Tell whether the page is run with a NATS server."""
    return _NEEDS_NATS in document


def blocks(document: str) -> Iterator[Block]:
    """Yield the fenced blocks of a Markdown document."""
    for found in _BLOCK.finditer(document):
        mark = _MARK.search(document[: found.start()])
        line = document.count("\n", 0, found.start("body")) + 1
        body = textwrap.dedent(found["body"])
        yield Block(found["language"], mark["mark"] if mark else None, line, body)


def files(document: str) -> dict[str, str]:
    """Return the files that a document has its reader write, by their names."""
    named = ((file_name(block), block.body) for block in blocks(document))
    return {name: body for name, body in named if name}


def is_program(block: Block) -> bool:
    """Tell whether the block is part of a program of its page."""
    return block.language == "python" and file_name(block) is None


def file_name(block: Block) -> str | None:
    """Return the name of the file that the block is; None: it is none."""
    mark = block.mark or ""
    return mark.removeprefix(_FILE) if mark.startswith(_FILE) else None


def commands(block: Block) -> list[Command]:
    """Return the commands of one block: none, unless it is a console's and marked to be run."""
    found: list[Command] = []
    if block.language == "console" and block.mark == "run":
        parts = re.split(r"^\$ ", block.body, flags=re.MULTILINE)
        line = block.line + parts[0].count("\n")
        for part in parts[1:]:
            text, _, output = part.partition("\n")
            found.append(Command(line, text, output))
            line += part.count("\n")
    return found


def prints(expected: str, printed: str) -> bool:
    """Return whether `printed` is what the document expects, where `…` stands for anything."""
    pattern = "\n".join(_line_pattern(line) for line in expected.strip().splitlines())
    return re.fullmatch(pattern, printed.strip()) is not None


def _line_pattern(line: str) -> str:
    if line.strip() == "…":
        return r"[\s\S]*"
    return ".*".join(re.escape(part) for part in line.split("…"))
