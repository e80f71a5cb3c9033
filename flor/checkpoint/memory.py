"""Memory for copies of a training's state: reused, page-aligned, never seen by forked children.

Pages that were never touched cost ten times a copy, so regions are kept and used again, and new
ones are faulted in on the background thread. A child that forks does not get them: it would pay
for each page that the parent writes later.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096  # regions begin on such a boundary: O_DIRECT wants it
HUGE_PAGE = 2 * 1024 * 1024
SEGMENT_BYTES = 64 * 1024 * 1024
FAULT_BYTES = 16 * 1024 * 1024  # faulted in at a time
SPARE = 0.3  # of the memory that is available, left to the training
_POPULATE_WRITE = 23  # madvise; Linux 5.14

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype = ctypes.py_object
_view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_PYBUF_READ, _PYBUF_WRITE = 0x100, 0x200


def copy(target: int, source: int, size_bytes: int) -> None:
    """Copy between addresses."""
    ctypes.memmove(target, source, size_bytes)


def equal(left: int, right: int, size_bytes: int) -> bool:
    """Whether the bytes at two addresses are the same."""
    return bool(_libc.memcmp(left, right, size_bytes) == 0)


def view(address: int, size_bytes: int, *, writable: bool = False) -> memoryview:
    """The bytes at an address, to be read. They are the caller's to keep alive."""
    # A ctypes array would be a new type for each size, which only a garbage collector frees.
    found: memoryview = _view(address, size_bytes, _PYBUF_WRITE if writable else _PYBUF_READ)
    return found


def of_file(fd: int, size_bytes: int) -> memoryview:
    """A file's bytes, to be read and changed; the file is not. Unlike with the module `mmap`, no
    descriptor stays open for it. Raises OSError."""
    found = _libc.mmap(
        *(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE), *(mmap.MAP_PRIVATE, fd, 0)
    )
    if found in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, f"no memory for {size_bytes:,} bytes of it: {os.strerror(number)}")
    content = (ctypes.c_ubyte * size_bytes).from_address(found)
    weakref.finalize(content, _libc.munmap, found, size_bytes).atexit = False
    return memoryview(content).cast("B")


class Segment:
    """Memory of the system, given back when nobody holds it any more."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = _up(size_bytes, HUGE_PAGE)
        whole = self.size_bytes + HUGE_PAGE  # so that a huge page's boundary lies in it
        found = _libc.mmap(
            *(None, whole, mmap.PROT_READ | mmap.PROT_WRITE),
            *(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0),
        )
        if found in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no {size_bytes:,} bytes for a copy of the state")
        weakref.finalize(self, _unmap, os.getpid(), found, whole).atexit = False
        for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
            if hasattr(mmap, advice):
                _libc.madvise(found, whole, getattr(mmap, advice))
        self.address = _up(found, HUGE_PAGE)


def _unmap(pid: int, address: int, size_bytes: int) -> None:
    if os.getpid() == pid:  # a forked child never had it, and may have something else there
        _libc.munmap(address, size_bytes)


@dataclass(frozen=True)
class Region:
    """Some bytes of an arena, there for as long as somebody holds this."""

    address: int
    size_bytes: int
    segment: Segment

    @property
    def end(self) -> int:
        return self.address + self.size_bytes

    def split(self, size_bytes: int) -> tuple[Region, Region]:
        rest = Region(self.address + size_bytes, self.size_bytes - size_bytes, self.segment)
        return Region(self.address, size_bytes, self.segment), rest


class Arena:
    """Hands out regions and takes them back."""

    def __init__(self) -> None:
        self._free: list[Region] = []  # by address; neighbours are one
        self.reserved_bytes = 0
        self.used_bytes = 0

    def take(self, size_bytes: int) -> Region:
        """A region of at least that size. Raises MemoryError."""
        size = _up(size_bytes, PAGE)
        fitting = [region for region in self._free if region.size_bytes >= size]
        if fitting:
            found = min(fitting, key=lambda region: region.size_bytes)
            self._free.remove(found)
        else:
            self._shrink()
            found = self._map(max(size, SEGMENT_BYTES))
        region, rest = found.split(size)
        if rest.size_bytes:
            self._insert(rest)
        self.used_bytes += size
        return region

    def give(self, region: Region) -> None:
        """Take a region back."""
        self.used_bytes -= region.size_bytes
        self._insert(region)

    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Make room for so much, and fault it in, some at each step; for the background."""
        missing = size_bytes - (self.reserved_bytes - self.used_bytes)
        if missing <= 0:
            return
        segment = Segment(missing)
        region = Region(segment.address, segment.size_bytes, segment)
        for start in range(0, region.size_bytes, FAULT_BYTES):
            fault_in(region.address + start, min(FAULT_BYTES, region.size_bytes - start))
            yield
        self.reserved_bytes += region.size_bytes
        self._insert(region)

    def release(self) -> None:
        """Give everything back to the system, regions as soon as nobody holds them."""
        self._free = []
        self.reserved_bytes = self.used_bytes = 0

    def _map(self, size_bytes: int) -> Region:
        segment = Segment(size_bytes)
        self.reserved_bytes += segment.size_bytes
        return Region(segment.address, segment.size_bytes, segment)

    def _insert(self, region: Region) -> None:
        """Segments never touch each other, so neighbours are of one."""
        free = self._free
        index = bisect.bisect(free, region.address, key=lambda other: other.address)
        if index < len(free) and free[index].address == region.end:
            after = free.pop(index)
            size_bytes = region.size_bytes + after.size_bytes
            region = Region(region.address, size_bytes, region.segment)
        if index and free[index - 1].end == region.address:
            index -= 1
            before = free.pop(index)
            size_bytes = before.size_bytes + region.size_bytes
            region = Region(before.address, size_bytes, before.segment)
        free.insert(index, region)

    def _shrink(self) -> None:
        """Let go of segments that nothing is in: what is asked for does not fit into them."""
        whole = [region for region in self._free if region.size_bytes == region.segment.size_bytes]
        for region in whole:
            self._free.remove(region)
            self.reserved_bytes -= region.size_bytes


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def fault_in(address: int, size_bytes: int) -> None:
    """Have the system find pages for memory that is new. What was there is lost."""
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
