"""What the bucket held when its content was last known to be right: the ETags of objects.

A file of JSON lines that only saves time: what it does not know is read from the bucket instead.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

FILE = "receipts.jsonl"


class Receipts:
    """The ETags of objects in one bucket, by digest. Without a file they last as long as this."""

    def __init__(self, path: Path | None, place: str) -> None:
        self._path = path
        self._place = place
        self._known: dict[str, str] | None = None
        self._lock = threading.Lock()

    def get(self, digest: str) -> str | None:
        """The ETag that the object had when it was known to be right."""
        with self._lock:
            return self._load().get(digest)

    def add(self, digest: str, etag: str | None) -> None:
        """Remember it; servers that give no ETag leave nothing to remember."""
        if not etag:
            return
        with self._lock:
            if self._load().get(digest) == etag:
                return
            self._load()[digest] = etag
            if self._path is not None:
                _append(self._path, [self._place, digest, etag])

    def _load(self) -> dict[str, str]:
        if self._known is None:
            lines = [] if self._path is None else map(_parsed, _lines(self._path))
            self._known = {line[1]: line[2] for line in lines if line and line[0] == self._place}
        return self._known


def _lines(path: Path) -> list[bytes]:
    with contextlib.suppress(OSError):
        if path.is_file():
            return path.read_bytes().splitlines()
    return []


def _parsed(line: bytes) -> list[Any] | None:
    """None for a line that is torn."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    fits = isinstance(found, list) and len(found) == 3 and all(isinstance(x, str) for x in found)
    return found if fits else None


def _append(path: Path, line: list[str]) -> None:
    # In one write, so that lines of several processes do not mix; it begins with a line's end, in
    # case a line before was torn.
    content = b"\n" + json.dumps(line).encode() + b"\n"
    with contextlib.suppress(OSError):
        if path.exists() and not path.is_file():
            return
        with path.open("ab", buffering=0) as file:
            file.write(content)
