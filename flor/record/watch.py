"""Sees which files the process opens, through an audit hook.

It sees `open` of Python itself, numpy, pandas' text readers and `torch.load`; it does not see
what C libraries open by themselves (parquet, hdf5). `flor.data` declares those.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILES = 20_000  # distinct paths a run remembers
CODE_SUFFIXES = (".py", ".pyc", ".pyi", ".pyd", ".so", ".pth", ".egg-link", ".dll", ".dylib")


class Sink(Protocol):
    """Takes (path, seconds since the epoch)."""

    def append(self, item: tuple[str, float], /) -> None: ...


class PathFile:
    """A sink in a child process: one path a line, in a file that appears with the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def append(self, item: tuple[str, float], /) -> None:
        if self._fd is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o644)
        os.write(self._fd, os.fsencode(item[0]) + b"\n")


class Watch:
    """The process's audit hook: paths opened for reading that it did not write itself."""

    def __init__(self) -> None:
        self._seen: dict[Any, None] = {}
        self._written: set[Any] = set()
        self.queue: deque[tuple[str, float]] = deque()
        self.sink: Sink = self.queue
        self.overflow = 0
        self.on = True
        self._exempt: set[int] = set()  # flor's own threads

    def install(self) -> None:
        # An audit hook stays until the process ends; `on` is what switches it.
        sys.addaudithook(self._hook())

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """What this thread opens is not what the script reads: flor hashes and versions it."""
        self._exempt.add(get_ident())
        try:
            yield
        finally:
            self._exempt.discard(get_ident())  # a later thread may have the same number

    def restart(self) -> None:
        """Another run begins in this process."""
        self._seen.clear()
        self._written.clear()
        self.overflow = 0
        self.on = True

    def divert(self, path: Path) -> None:
        """In a child process: tell the parent, through a file."""
        self.sink = PathFile(path)

    def _hook(self) -> Callable[[str, tuple[Any, ...]], None]:
        """A plain function: each `id()` of the script calls it, and a method would take thrice."""

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == "open":
                if self.on:
                    with suppress(Exception):  # an error here would fail the user's open()
                        self._opened(*args)
            elif event == "os.chdir":
                self._seen.clear()  # relative paths mean other files now

        return hook

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        if path in self._seen or not isinstance(path, (str, bytes, os.PathLike)):
            return
        if get_ident() in self._exempt:
            return
        reading = "r" in mode and "+" not in mode if isinstance(mode, str) else not flags & 3
        if not reading:
            if len(self._written) < MAX_FILES:
                self._written.add(os.fspath(path))
            return
        if len(self._seen) >= MAX_FILES:
            self.overflow += 1
            return
        self._seen[path] = None
        name = os.fsdecode(path)
        if os.fspath(path) not in self._written and not name.endswith(CODE_SUFFIXES):
            self.sink.append((os.path.abspath(name), time.time()))
