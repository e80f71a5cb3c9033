"""Memory for copies of a training's state: reused, page-aligned, never seen by forked children.

Pages that were never touched cost ten times a copy, so regions are kept and used again, and new
ones are faulted in on the background thread. A child that forks does not get them: it would pay
for each page that the parent writes later.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096  # regions begin on such a boundary: O_DIRECT wants it
HUGE_PAGE = 2 * 1024 * 1024
SEGMENT_BYTES = 64 * 1024 * 1024
FAULT_BYTES = 16 * 1024 * 1024  # faulted in at a time
SPARE = 0.3  # of the memory that is available, left to the training
_POPULATE_WRITE = 23  # madvise; Linux 5.14

_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def copy(target: int, source: int, size_bytes: int) -> None:
    """Copy between addresses."""
    ctypes.memmove(target, source, size_bytes)


def equal(left: int, right: int, size_bytes: int) -> bool:
    """Whether the bytes at two addresses are the same."""
    return bool(_libc.memcmp(left, right, size_bytes) == 0)


def view(address: int, size_bytes: int) -> memoryview:
    """The bytes at an address. They are the caller's to keep alive."""
    return memoryview((ctypes.c_ubyte * size_bytes).from_address(address)).cast("B")


@dataclass(frozen=True)
class Region:
    """Some bytes of an arena."""

    address: int
    size_bytes: int


class Arena:
    """Hands out regions and takes them back."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._segments: list[tuple[int, int]] = []  # address and size, as mapped
        self._rest: list[tuple[int, int]] = []  # what was never handed out
        self._free: dict[int, list[Region]] = {}  # by size
        self.reserved_bytes = 0
        self.used_bytes = 0

    def take(self, size_bytes: int) -> Region:
        """A region of at least that size. Raises MemoryError."""
        size = -(-size_bytes // PAGE) * PAGE
        self.used_bytes += size
        free = self._free.get(size)
        if free:
            return free.pop()
        for index, (address, left) in enumerate(self._rest):
            if left >= size:
                self._rest[index] = (address + size, left - size)
                return Region(address, size)
        address, left = self._map(max(size, SEGMENT_BYTES))
        self._rest.append((address + size, left - size))
        return Region(address, size)

    def give(self, region: Region) -> None:
        """Take a region back."""
        self.used_bytes -= region.size_bytes
        self._free.setdefault(region.size_bytes, []).append(region)

    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Make room for so much, and fault it in, some at each step; for the background."""
        missing = size_bytes - (self.reserved_bytes - self.used_bytes)
        if missing <= 0:
            return
        address, size = self._map(missing)
        for start in range(0, size, FAULT_BYTES):
            _fault_in(address + start, min(FAULT_BYTES, size - start))
            yield
        self._rest.append((address, size))

    def release(self) -> None:
        """Give everything back to the system. Nothing in a forked child: it never had it."""
        if os.getpid() == self._pid:
            for address, size in self._segments:
                _libc.munmap(address, size)
        self._segments, self._rest, self._free = [], [], {}
        self.reserved_bytes = self.used_bytes = 0

    def _map(self, size_bytes: int) -> tuple[int, int]:
        size = -(-size_bytes // HUGE_PAGE) * HUGE_PAGE
        whole = size + HUGE_PAGE  # so that a huge page's boundary lies in it
        found = _libc.mmap(
            *(None, whole, mmap.PROT_READ | mmap.PROT_WRITE),
            *(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0),
        )
        if found in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no {size_bytes:,} bytes for a copy of the state")
        for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
            if hasattr(mmap, advice):
                _libc.madvise(found, whole, getattr(mmap, advice))
        self._segments.append((found, whole))
        self.reserved_bytes += size
        return -(-found // HUGE_PAGE) * HUGE_PAGE, size


def _fault_in(address: int, size_bytes: int) -> None:
    if sys.platform != "linux" or _libc.madvise(address, size_bytes, _POPULATE_WRITE) != 0:
        ctypes.memset(address, 0, size_bytes)  # one step is short; it holds no lock of Python


def affordable(size_bytes: int) -> bool:
    """Whether so much more memory leaves the training enough to breathe."""
    available = available_bytes()
    return available is None or size_bytes < available * (1 - SPARE)


def available_bytes() -> int | None:
    """What this process may still take; None where the system does not tell."""
    found = [value for value in (_system_bytes(), _container_bytes()) if value is not None]
    return min(found, default=None)


def _system_bytes() -> int | None:
    text = _read("/proc/meminfo")
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _container_bytes() -> int | None:
    """What the control group leaves, in either version of them."""
    for folder, limit, usage in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        most, now = _read(f"{folder}/{limit}").strip(), _read(f"{folder}/{usage}").strip()
        if most.isdigit() and now.isdigit():
            return max(int(most) - int(now), 0)
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
