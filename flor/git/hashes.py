"""What the content of files was, remembered while their size and times stay the same."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from flor.git.process import Git

SETTLED_NS = 2_000_000_000  # a file changed more recently could change again at the same time

Stamp = tuple[int, int, int, int]
"""mtime and ctime in ns, size in bytes, inode."""


class Hashes:
    """Which blob a file was, for as long as its stamp is the same. One file of JSON."""

    def __init__(self, path: Path, git: Git) -> None:
        self._path = path
        self._owner = str(git.git_dir)
        self._old: dict[str, list[object]] = {}
        self._new: dict[str, list[object]] = {}
        self._now = time.time_ns()

    @classmethod
    def load(cls, path: Path, git: Git) -> Hashes:
        hashes = cls(path, git)
        with suppress(OSError, ValueError, AttributeError):
            data = json.loads(path.read_bytes())
            if data.get("repository") == hashes._owner and isinstance(data["files"], dict):
                hashes._old = data["files"]
        return hashes

    def get(self, path: bytes, stamp: Stamp) -> str | None:
        """The blob that the file was, if its stamp is the same."""
        known = self._old.get(name := os.fsdecode(path))
        if known is None or known[1:] != [*stamp]:
            return None
        self._new[name] = known
        return str(known[0])

    def put(self, path: bytes, stamp: Stamp, oid: str) -> None:
        """Remember it, unless the file is so new that a change might not show in its times."""
        if max(stamp[:2]) < self._now - SETTLED_NS:
            self._new[os.fsdecode(path)] = [oid, *stamp]

    def save(self) -> None:
        """Keep what was used since it was loaded, and forget the rest."""
        if self._new == self._old:
            return
        text = json.dumps({"repository": self._owner, "files": self._new})
        part = self._path.parent / "tmp" / f"hashes-{os.getpid()}-{os.urandom(4).hex()}"
        with suppress(OSError):  # it only saves time
            part.write_text(text, encoding="ascii")
            part.replace(self._path)
