"""Bytes to disk, one `write` a line, so that what returned survives the process.

The kernel has the bytes once `os.write` returns: `kill -9` cannot take them back. A disk that is
full does not stop the training: lines wait in memory, up to a limit, and are tried again.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from flor.errors import FlorError

BACKLOG_BYTES = 16 * 1024 * 1024
RETRY_SECONDS = 5.0
HIGH_DESCRIPTOR = 500  # out of the way of scripts that close or count low descriptors


class Journal:
    """An append-only file of lines. `warn` is called once when the disk refuses."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn = warn
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._lost = 0
        self._retry_at = 0.0
        self._closed = False
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.fd = _moved_up(os.open(path, flags, 0o644))
        self.write = self._make_write()

    def _make_write(self) -> Callable[[bytes], None]:
        """`write(lines)` appends whole lines and raises nothing. A closure: it is the hot path."""
        fd, waiting, to_disk = self.fd, self._waiting, os.write

        def write(line: bytes) -> None:
            if waiting:
                self._write_later(line)
                return
            try:
                written = to_disk(fd, line)
            except OSError as error:
                self._refused(line, error)
                return
            if written != len(line):
                # The disk filled up in mid-line. The newline ends the torn line, once it fits.
                self._refused(b"\n" + line, OSError(f"{written} of {len(line)} bytes fitted"))

        return write

    def close(self) -> None:
        """Try once more what is waiting, and write nothing from now on."""
        if self._waiting:
            self._retry_at = 0.0
            self._write_later(b"")
        if self._lost or any(self._waiting):
            count = self._lost + sum(block.count(b"\n") for block in self._waiting)
            self._warn(f"{count} lines of {self.path} were lost: the disk refused them to the end")
        self._closed = True
        self._waiting[:] = [
            b""
        ]  # later lines go where they are dropped, not to a reused descriptor
        os.close(self.fd)

    def _refused(self, line: bytes, error: OSError) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._keep(line)  # before the warning, which becomes a line itself
        self._warn(
            f"cannot write {self.path}: {error}. The training goes on; records wait in memory "
            f"(up to {BACKLOG_BYTES // 1024**2} MiB) until the disk takes them"
        )

    def _keep(self, line: bytes) -> None:
        if self._waiting_bytes + len(line) > BACKLOG_BYTES:
            self._lost += 1
        else:
            self._waiting.append(line)
            self._waiting_bytes += len(line)

    def _write_later(self, line: bytes) -> None:
        if self._closed:
            return
        self._keep(line)
        now = time.monotonic()
        if now < self._retry_at:
            return
        self._retry_at = now + RETRY_SECONDS
        block = b"".join(self._waiting)
        try:
            written = os.write(self.fd, block)
        except OSError:
            return
        rest = block[written:]
        # After a partial write the rest starts inside a line; the reader skips that torn line
        # unless the next try completes it, so nothing is inserted before it.
        self._waiting[:] = [rest] if rest else []
        self._waiting_bytes = len(rest)


class Claim:
    """A lock on `alive` that tells other processes that this run's process lives.

    POSIX record locks belong to the process: a forked child does not hold them, and they go
    with the process however it ends. Closing any descriptor of the file drops the lock, so this
    process never opens it twice.
    """

    def __init__(self, path: Path) -> None:
        self._fd = _moved_up(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise FlorError(f"cannot lock {path}: {error}") from error

    def release(self) -> None:
        os.close(self._fd)


def is_dead(run_dir: Path) -> bool:
    """Whether no process holds the claim of a run that another process began."""
    try:
        fd = os.open(run_dir / "alive", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _moved_up(fd: int) -> int:
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError:  # the limit of descriptors is lower than that
        return fd
    os.close(fd)
    return high
