"""Bytes to disk, one `write` a line, so that what returned survives the process.

The kernel has the bytes once `os.write` returns: `kill -9` cannot take them back. A disk that is
full does not stop the training: lines wait in memory, up to a limit, and are tried again. Nor does
a script that closes descriptors which are not its own: the file is opened again.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flor.claim import moved_up

BACKLOG_BYTES = 16 * 1024 * 1024
RETRY_SECONDS = 5.0
TORN_END = b"?\n"  # makes sure that half a line is no record by itself, nor part of the next


class Journal:
    """An append-only file of lines. `warn` is called when the disk refuses."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn = warn
        self._slow = threading.RLock()  # a signal handler may log in the middle of a slow write
        self._busy = False
        self._torn = False  # the file ends in half a line, which is written again as a whole
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._lost = 0
        self._retry_at = 0.0
        self._closed = False
        self.fd = moved_up(os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o644))
        self._identity = _identity(self.fd)
        self.write = self._make_write()

    def _make_write(self) -> Callable[[bytes], None]:
        """`write(lines)` appends whole lines and raises nothing. A closure: it is the hot path."""
        waiting, to_disk = self._waiting, os.write

        def write(line: bytes) -> None:
            if waiting:
                self._write_later(line)
                return
            try:
                written = to_disk(self.fd, line)
            except OSError as error:
                self._refused(line, error)
                return
            if written != len(line):
                self._torn = True  # the disk filled up in mid-line
                self._refused(line, OSError(f"{written} of {len(line)} bytes fitted"))

        return write

    def check(self) -> None:
        """Open the file again if its descriptor is not ours any more: the script closed it."""
        if not self._closed and _identity(self.fd) != self._identity:
            self._reopen()

    def close(self) -> None:
        """Try once more what is waiting, and write nothing from now on."""
        self.check()
        if self._waiting:
            self._retry_at = 0.0
            self._write_later(b"")
        if self._lost or any(self._waiting):
            count = self._lost + sum(block.count(b"\n") for block in self._waiting)
            self._warn(f"{count} lines of {self.path} were lost: the disk refused them to the end")
        self.abandon()

    def abandon(self) -> None:
        """Write nothing from now on; in a forked child, where the file is the parent's."""
        self._closed = True
        # Lines that come later go where they are dropped, not to a descriptor that is reused.
        self._waiting[:] = [b""]
        if _identity(self.fd) == self._identity:
            os.close(self.fd)

    def _refused(self, line: bytes, error: OSError) -> None:
        if error.errno == errno.EBADF and self._reopen():
            self.write(line)
            return
        with self._slow:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._keep(line)  # before the warning, which becomes a line itself
        self._warn(
            f"cannot write {self.path}: {error}. The training goes on; records wait in memory "
            f"(up to {BACKLOG_BYTES // 1024**2} MiB) until the disk takes them"
        )

    def _reopen(self) -> bool:
        with suppress(OSError):
            fd = moved_up(os.open(self.path, _FLAGS))
            if _identity(fd) == self._identity:
                self.fd = fd
                return True
            os.close(fd)
        return False

    def _keep(self, line: bytes) -> None:
        if self._waiting_bytes + len(line) > BACKLOG_BYTES:
            self._lost += 1
        else:
            self._waiting.append(line)
            self._waiting_bytes += len(line)

    def _write_later(self, line: bytes) -> None:
        with self._slow:
            if self._closed:
                return
            self._keep(line)
            now = time.monotonic()
            if now < self._retry_at or self._busy:
                return
            self._retry_at = now + RETRY_SECONDS
            self._busy = True
            try:
                self._write_waiting()
            finally:
                self._busy = False

    def _write_waiting(self) -> None:
        """One write of all that waits; lines that come meanwhile stay behind them."""
        count = len(self._waiting)
        if self._torn:
            self._torn = False
            self._waiting.insert(0, TORN_END)
            self._waiting_bytes += len(TORN_END)
            count += 1
        block = b"".join(self._waiting[:count])
        try:
            written = os.write(self.fd, block)
        except OSError:
            return
        # After a partial write the rest starts inside a line, which the next try completes.
        rest = block[written:]
        self._waiting[:count] = [rest] if rest else []
        self._waiting_bytes -= written


_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino
