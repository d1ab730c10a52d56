"""The guard of a folder keeps every rule."""

import shutil

from fencelock.testing import AsyncGuardConformance, GuardConformance
from tests.support.helpers import folder_in_memory


class InFolder:
    """A fresh folder for each check. A value is a file of the resource `r`, which is what the checks write to."""

    interrupted_files = ("/fencelock/stores/files/guard/commit.py",)

    def make_url(self):
        self.base = folder_in_memory("fencelock-")
        return f"file://{self.base}"

    def teardown_method(self):
        super().teardown_method()
        shutil.rmtree(self.base)

    def dump(self):
        paths = sorted(self.base.rglob("*"))
        return b"".join(str(path).encode() + (path.read_bytes() if path.is_file() else b"") for path in paths)

    def path(self, table, key):
        return self.base / "r" / table / key

    def put(self, native, table, key, value):
        native.write(f"{table}/{key}", value)

    def put_alone(self, table, key, value):
        self.path(table, key).parent.mkdir(parents=True, exist_ok=True)
        self.path(table, key).write_text(value)

    def get(self, table, key):
        # Each resource has a folder of its own, and the checks name none: they write to one of them.
        found = sorted(self.base.glob(f"*/{table}/{key}"))
        return found[0].read_text() if found else None

    def lose_mark(self, resource):
        (self.base / ".fencelock" / "marks" / resource).unlink()


class TestFilesGuard(InFolder, GuardConformance):
    pass


class TestAsyncFilesGuard(InFolder, AsyncGuardConformance):
    pass
