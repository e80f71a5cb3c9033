"""The bytes of a manifest's leaves, from the store, checked.

Large leaves are mapped privately: nothing is read twice, and whoever changes them changes only his
copy. Checking is done for all of them at once, on several threads, since it is what takes the time.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flor.checkpoint.manifest import Leaf
from flor.errors import DamagedCheckpoint, ObjectMissing
from flor.objects import ObjectStore

CHECK_BYTES = 8 * 1024 * 1024
MAP_ABOVE = 256 * 1024
THREADS = 8

Progress = Callable[[int], None]


class Leaves:
    """Gives the content of leaves by their number, read and checked when it is asked for."""

    def __init__(self, store: ObjectStore, leaves: Sequence[Leaf]) -> None:
        self._store = store
        self._leaves = leaves
        self._content: dict[int, memoryview] = {}
        self._sharing: dict[str, list[int]] = {}  # the leaves of each object
        for number, leaf in enumerate(leaves):
            self._sharing.setdefault(leaf.digest, []).append(number)

    def load(self, wanted: Sequence[int] | None = None, progress: Progress | None = None) -> None:
        """Open and check leaves (default: all). Raises DamagedCheckpoint, BucketError."""
        numbers = range(len(self._leaves)) if wanted is None else wanted
        missing = [number for number in numbers if number not in self._content]
        by_object: dict[str, list[int]] = {}
        for number in missing:
            by_object.setdefault(self._leaves[number].digest, []).append(number)
        threads = min(THREADS, _cores(), max(len(by_object), 1))
        with ThreadPoolExecutor(threads) as pool:
            for numbers_of, contents in pool.map(self._open, by_object.values()):
                self._content.update(zip(numbers_of, contents, strict=True))
                if progress is not None:
                    progress(sum(len(content) for content in contents))

    def __getitem__(self, number: int) -> memoryview:
        """The leaf's bytes, to be read only."""
        if number not in self._content:
            if not 0 <= number < len(self._leaves):
                raise IndexError(f"the checkpoint has no leaf {number}")
            self.load([number])
        return self._content[number]

    def take(self, number: int) -> memoryview:
        """The leaf's bytes in memory of their own: whoever asks for them again gets other memory,
        so that no value changes with another, nor with what was made of the same leaf before."""
        content = self[number]
        if len(content) < MAP_ABOVE:
            return memoryview(bytearray(content))
        for other in self._sharing[self._leaves[number].digest]:
            self._content.pop(other, None)
        return content

    def _open(self, numbers: list[int]) -> tuple[list[int], list[memoryview]]:
        """The contents of leaves of one object."""
        digest = self._leaves[numbers[0]].digest
        try:
            path = self._store.local(digest)
            whole = _map(path)
        except (ObjectMissing, OSError) as error:
            raise DamagedCheckpoint(
                f"an object of the checkpoint cannot be read: {error}"
            ) from error
        return numbers, [self._checked(path, whole, self._leaves[number]) for number in numbers]

    def _checked(self, path: Path, whole: memoryview, leaf: Leaf) -> memoryview:
        content = whole[leaf.offset : leaf.offset + leaf.size_bytes]
        if len(content) != leaf.size_bytes or _crc(content) != leaf.crc:
            raise DamagedCheckpoint(
                f"{path} is damaged: it does not hold what the checkpoint wrote; remove the file "
                "and copy it again from the bucket or the machine that wrote it, or use another "
                "checkpoint"
            )
        return content


def _map(path: Path) -> memoryview:
    size_bytes = path.stat().st_size
    if size_bytes < MAP_ABOVE:
        return memoryview(bytearray(path.read_bytes()))
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        return memoryview(mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_COPY))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _crc(content: memoryview) -> int:
    crc = 0
    for start in range(0, len(content), CHECK_BYTES):
        crc = zlib.crc32(content[start : start + CHECK_BYTES], crc)
    return crc
