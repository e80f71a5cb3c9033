"""Leaves → objects → manifest → journal line: the background's part of a checkpoint.

The order is the promise: objects first, then the manifest, then the line that lists it. Whatever
kills the process in between leaves objects that nobody refers to, never a listed checkpoint that
lacks something.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from flor.checkpoint import signing
from flor.checkpoint.manifest import Leaf, Manifest
from flor.checkpoint.memory import PAGE
from flor.checkpoint.staging import SMALL_BYTES, Pending
from flor.objects import ObjectStore

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that pauses every few milliseconds, with a result."""

STEP_BYTES = 4 * 1024 * 1024  # hashed or written at a time
DIRECT_BYTES = 1024 * 1024  # larger objects are written past the page cache
ALIGNMENT = 16  # of packed leaves, so that they can be used in place
FREE_BYTES = 1024**3  # a disk is not filled further than this


class NoRoom(OSError):
    """The disk is nearly full."""


@dataclass
class Written:
    """What became of a checkpoint."""

    manifest: Manifest
    digest: str
    new_bytes: int
    began: float
    ended: float
    lane_seconds: float = 0.0  # of processor time, on threads besides the one that wrote it


@dataclass
class Objects:
    """Writes objects in steps, past the page cache where that is possible.

    `lanes` tells how many may be written at once, each by a thread that is there for one step
    only; `unseen` surrounds what such a thread does.
    """

    store: ObjectStore
    lanes: Callable[[], int] = lambda: 1
    unseen: Callable[[], AbstractContextManager[None]] = nullcontext
    new_bytes: int = 0
    lane_seconds: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)  # of objects that are there
    _direct: bool = hasattr(os, "O_DIRECT")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, content: bytes | memoryview, aligned: bool = False) -> Steps[Leaf]:
        """Store content whose memory begins on a page, if `aligned`; the result is its place."""
        hasher, crc = hashlib.blake2b(digest_size=32), 0
        for start in range(0, len(content), STEP_BYTES):
            part = content[start : start + STEP_BYTES]
            hasher.update(part)
            crc = zlib.crc32(part, crc)
            yield
        digest = hasher.hexdigest()
        there = self.store.use(digest, len(content))
        if there and digest not in self.sizes:
            there = yield from self._holds(digest, content)
        if not there:
            yield from self._write(digest, content, aligned)
        self.sizes[digest] = len(content)
        return Leaf(digest, 0, len(content), crc)

    def _holds(self, digest: str, content: bytes | memoryview) -> Steps[bool]:
        """Whether an object that others wrote is what it should be: a power failure or a bad disk
        would else spoil each checkpoint that relies on it."""
        try:
            with self.store.path(digest).open("rb", buffering=0) as file:
                for start in range(0, len(content), STEP_BYTES):
                    if file.read(STEP_BYTES) != content[start : start + STEP_BYTES]:
                        return False
                    yield
        except OSError:
            return False
        return True

    def _write(self, digest: str, content: bytes | memoryview, aligned: bool) -> Steps[None]:
        partial = self.store.partial(digest)
        _insist_on_room(partial.parent, len(content))
        direct = aligned and self._direct and len(content) >= DIRECT_BYTES
        fd, owner = -1, os.getpid()
        try:
            fd = self._open(partial, direct)
            yield from self._fill(fd, memoryview(content), direct)
            closing, fd = fd, -1  # its number may be another file's even if closing fails
            os.close(closing)
            partial.replace(self.store.path(digest))
        except BaseException:
            if os.getpid() == owner:  # a forked child drops its copy of this generator
                with suppress(OSError):
                    partial.unlink()
            raise
        finally:
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        with self._lock:
            self.new_bytes += len(content)

    def put_all(self, items: Iterable[tuple[int, Pending]]) -> Steps[dict[int, Leaf]]:
        """Store leaves, several at once; their places by their numbers."""
        waiting, lanes = deque(items), list[_Lane]()
        found: dict[int, Leaf] = {}
        try:
            while waiting or lanes:
                while waiting and len(lanes) < max(self.lanes(), 1):
                    number, item = waiting.popleft()
                    lanes.append(_Lane(number, self.put(item.bytes(), item.paged)))
                self._step(lanes)
                found.update({lane.number: lane.leaf for lane in lanes if lane.leaf is not None})
                lanes = [lane for lane in lanes if lane.leaf is None]
                yield
        finally:
            for lane in lanes:
                lane.steps.close()
        return found

    def _step(self, lanes: list[_Lane]) -> None:
        """One step of each, at the same time. Raises what the first of them raised."""
        threads = [threading.Thread(target=self._elsewhere, args=(lane,)) for lane in lanes[1:]]
        for lane, thread in zip(lanes[1:], threads, strict=True):
            try:
                thread.start()
            except RuntimeError:  # no more threads for this process
                lane.step()
        lanes[0].step()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for lane in lanes:
            if lane.error is not None:
                raise lane.error

    def _elsewhere(self, lane: _Lane) -> None:
        with self.unseen():
            lane.step()
        with self._lock:
            self.lane_seconds += time.thread_time()

    def _open(self, partial: Any, direct: bool) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        if direct:
            try:
                return os.open(partial, flags | os.O_DIRECT, 0o644)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = False  # this file system knows no direct writes
        return os.open(partial, flags, 0o644)

    def _fill(self, fd: int, content: memoryview, direct: bool) -> Steps[None]:
        direct = direct and self._direct
        whole = len(content) // PAGE * PAGE if direct else len(content)
        place = 0
        while place < len(content):
            if place == whole:
                _go_through_cache(fd)  # the last bytes fill no page
            end = min(place + STEP_BYTES, whole if place < whole else len(content))
            try:
                place += os.pwrite(fd, content[place:end], place)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._direct = False
                _go_through_cache(fd)
                whole = len(content)
            yield


@dataclass
class _Lane:
    """One of several leaves that are written at once."""

    number: int
    steps: Steps[Leaf]
    leaf: Leaf | None = None
    error: BaseException | None = None

    def step(self) -> None:
        try:
            next(self.steps)
        except StopIteration as end:
            self.leaf = end.value
        except BaseException as error:  # noqa: BLE001 - it is raised where all lanes are waited for
            self.error = error


def write(
    manifest: Manifest,
    pending: list[Pending],
    objects: Objects,
    done: Callable[[Written, list[Leaf]], None],
) -> Steps[None]:
    """The steps of writing one checkpoint; `done` is called last, when it may be listed."""
    began = time.perf_counter()
    objects.new_bytes, objects.lane_seconds = 0, 0.0
    leaves: list[Leaf | None] = [None] * len(pending)
    small: list[int] = []
    large: list[tuple[int, Pending]] = []
    there: dict[str, bool] = {}  # thousands of small leaves may be in one object
    for number, item in enumerate(pending):
        if item.leaf is None and item.same and item.slot is not None:
            item.leaf = item.slot.leaf  # it was still being written when this was taken
        if item.leaf is not None and item.leaf.digest not in there:
            there[item.leaf.digest] = _is_there(objects, item.leaf)
            yield
        if item.leaf is not None and there[item.leaf.digest]:
            leaves[number] = item.leaf
        elif item.size_bytes < SMALL_BYTES:
            small.append(number)
        else:
            large.append((number, item))
    for number, leaf in (yield from objects.put_all(large)).items():
        leaves[number] = leaf
    if small:
        yield from _pack(pending, small, leaves, objects)
    places = [leaf for leaf in leaves if leaf is not None]
    pickles = tuple(number for number, item in enumerate(pending) if item.code)
    manifest = replace(manifest, leaves=tuple(places), pickles=pickles)
    if pickles:
        digests = [signing.digest(pending[number].content) for number in pickles]
        manifest = replace(manifest, signature=signing.sign(digests))
    content = yield from manifest.packed()
    digest = (yield from objects.put(content)).digest
    for name in {leaf.digest for leaf in places}:
        if not objects.store.use(name, objects.sizes[name]):
            raise FileNotFoundError(f"object {name} was removed while the checkpoint was written")
        yield
    ended = time.perf_counter()
    written = Written(manifest, digest, objects.new_bytes, began, ended, objects.lane_seconds)
    done(written, places)


def _is_there(objects: Objects, leaf: Leaf) -> bool:
    size_bytes = objects.sizes.get(leaf.digest)
    return size_bytes is not None and objects.store.use(leaf.digest, size_bytes)


def _pack(
    pending: list[Pending], small: list[int], leaves: list[Leaf | None], objects: Objects
) -> Steps[None]:
    """Small leaves go into one object, each content once."""
    pack = bytearray()
    places: dict[bytes, tuple[int, int]] = {}  # offset and checksum
    contents = [bytes(pending[number].bytes()) for number in small]
    for content in contents:
        if content not in places:
            places[content] = (len(pack), zlib.crc32(content))
            pack += content + bytes(-len(content) % ALIGNMENT)
            yield
    digest = (yield from objects.put(memoryview(pack))).digest
    for number, content in zip(small, contents, strict=True):
        offset, crc = places[content]
        leaves[number] = Leaf(digest, offset, len(content), crc)


def _insist_on_room(folder: Any, size_bytes: int) -> None:
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    if free < size_bytes + FREE_BYTES:
        raise NoRoom(
            errno.ENOSPC,
            f"{free / 2**30:.1f} GiB are left on the disk of {folder}; `flor gc` helps",
        )


def _go_through_cache(fd: int) -> None:
    import fcntl

    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
