"""The bytes of a manifest's leaves, from the store, checked.

Large objects are mapped privately: nothing is read twice, and whoever changes them changes only
his copy. An object is opened once for all its leaves. Checking is done for all of them at once, on
several threads, since it is what takes the time.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flor.checkpoint import memory
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
        self._content: dict[int, memoryview] = {}  # of leaves that were checked
        self._objects: dict[str, tuple[Path, memoryview]] = {}  # that are open
        self._sharing: dict[str, list[int]] = {}  # the leaves of each object
        for number, leaf in enumerate(leaves):
            self._sharing.setdefault(leaf.digest, []).append(number)

    def load(self, wanted: Sequence[int] | None = None, progress: Progress | None = None) -> None:
        """Open and check leaves (default: all). Raises DamagedCheckpoint, BucketError."""
        numbers = range(len(self._leaves)) if wanted is None else wanted
        by_object: dict[str, list[int]] = {}
        for number in numbers:
            if number not in self._content:
                by_object.setdefault(self._leaves[number].digest, []).append(number)
        threads = min(THREADS, _cores(), max(len(by_object), 1))
        with ThreadPoolExecutor(threads) as pool:
            for size_bytes in pool.map(self._read, by_object.values()):
                if progress is not None:
                    progress(size_bytes)

    def __getitem__(self, number: int) -> memoryview:
        """The leaf's bytes, to be read only."""
        if number not in self._content:
            if not 0 <= number < len(self._leaves):
                raise IndexError(f"the checkpoint has no leaf {number}")
            self._read([number])
        return self._content[number]

    def take(self, number: int) -> memoryview:
        """The leaf's bytes in memory of their own: whoever asks for them again gets other memory,
        so that no value changes with another, nor with what was made of the same leaf before."""
        content = self[number]
        if len(content) < MAP_ABOVE:
            return memoryview(bytearray(content))
        digest = self._leaves[number].digest
        del self._objects[digest]
        for other in self._sharing[digest]:
            self._content.pop(other, None)
        return content

    def _read(self, numbers: list[int]) -> int:
        """Check leaves of one object; how many bytes they are."""
        path, whole = self._open(self._leaves[numbers[0]].digest)
        for number in numbers:
            self._content[number] = self._checked(path, whole, self._leaves[number])
        return sum(self._leaves[number].size_bytes for number in numbers)

    def _open(self, digest: str) -> tuple[Path, memoryview]:
        found = self._objects.get(digest)
        if found is None:
            try:
                path = self._store.local(digest)
                found = self._objects[digest] = (path, _map(path))
            except (ObjectMissing, OSError) as error:
                raise DamagedCheckpoint(
                    f"an object of the checkpoint cannot be read: {error}"
                ) from error
        return found

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
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes < MAP_ABOVE:
            return memoryview(bytearray(file.read()))
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        return memory.of_file(file.fileno(), size_bytes)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _crc(content: memoryview) -> int:
    crc = 0
    for start in range(0, len(content), CHECK_BYTES):
        crc = zlib.crc32(content[start : start + CHECK_BYTES], crc)
    return crc
