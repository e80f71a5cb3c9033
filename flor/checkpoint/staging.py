"""Copies of values, taken while the training waits; what has not changed is not copied again.

A large block of memory has a slot, found again by its address and size. If the slot still holds
the same bytes, which is proved by comparing them, the block's place in the store is known and
nothing is copied. A version counter only tells whether the comparison is worth trying.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flor.checkpoint import memory
from flor.checkpoint.manifest import Leaf

PARALLEL_BYTES = 16 * 1024 * 1024  # so much for each thread that copies
MOST_THREADS = 4
SMALL_BYTES = 64 * 1024  # smaller blocks are packed into one object

Ready = Callable[[], "bytes | memoryview"]
"""Waits for bytes, and gives them: a device copies by itself."""


@dataclass
class Slot:
    """Memory for the copy of one block."""

    region: memory.Region
    size_bytes: int
    hint: object = None  # the block's version when it was copied
    leaf: Leaf | None = None  # where the store has these bytes; None until they are written


@dataclass(slots=True)
class Pending:
    """Bytes on their way to the store. `leaf` is known if they were written before."""

    content: bytes | memoryview
    leaf: Leaf | None = None
    slot: Slot | None = None
    code: bool = False  # unpickled when it is read
    keep: Any = None  # owner of the memory, where that is not the arena
    size_bytes: int = 0
    paged: bool = False  # its memory begins on a page
    ready: Ready | None = None  # gives the content later
    same: bool = False  # as in the checkpoint before

    def bytes(self) -> bytes | memoryview:
        """The content; for a device's it waits."""
        return self.content if self.ready is None else self.ready()


class Staging:
    """The blocks of one checkpoint after the other. `begin`, then `put…`, then `end`.

    Used by the thread that trains while the writer rests, so that slots are nobody's to read.
    """

    def __init__(self) -> None:
        self.arena = memory.Arena()
        self._slots: dict[tuple[int, int], Slot] = {}
        self._small: dict[bytes, Leaf] = {}
        self._seen: dict[tuple[int, int], int] = {}
        self._kept: list[Any] = []  # owners of what was seen, so that no address is used twice
        self._blocks: list[_Block] = []
        self._copies: deque[_Copy] = deque()
        self.pending: list[Pending] = []
        self.copied_bytes = 0
        self.live = False  # blocks are not copied: the training waits until they are written
        self.beside = False  # the writer still reads the slots: what changed is copied elsewhere
        self._lock = threading.Lock()

    def begin(self, *, live: bool = False, beside: bool = False) -> None:
        self.pending = []
        self._seen, self._kept, self._blocks = {}, [], []
        self._copies.clear()
        self.copied_bytes = 0
        self.live, self.beside = live, beside

    def put_block(self, address: int, size_bytes: int, hint: object, keep: Any) -> int:
        """Note a block of memory, which `end` copies at the latest; the number of its leaf."""
        key = (address, size_bytes)
        known = self._seen.get(key)
        if known is not None:
            return known
        self._kept.append(keep)
        if size_bytes < SMALL_BYTES:
            number = self.put_bytes(ctypes.string_at(address, size_bytes))
        elif self.live:
            content = memory.view(address, size_bytes)
            number = self._add(Pending(content, keep=keep, size_bytes=size_bytes))
        else:
            number = self._later(address, size_bytes, hint)
        self._seen[key] = number
        return number

    def put_bytes(self, content: bytes, *, code: bool = False) -> int:
        """Bytes that nobody changes; the number of their leaf."""
        return self._add(Pending(content, self._small.get(content), None, code, None, len(content)))

    def put_later(self) -> int:
        """The number of a leaf whose bytes `arrives` tells of, before `end`."""
        return self._add(Pending(b""))

    def arrives(self, number: int, size_bytes: int, ready: Ready, *, paged: bool = False) -> None:
        """`ready` gives the bytes of a leaf, when the writer asks for them."""
        pending = self.pending[number]
        pending.size_bytes, pending.ready, pending.paged = size_bytes, ready, paged

    def end(self) -> list[Pending]:
        """The leaves of this checkpoint, copied. Slots of blocks that it does not have are free
        again. Raises MemoryError."""
        if not self.live:
            for key in self._slots.keys() - self._seen.keys() if not self.beside else ():
                self.arena.give(self._slots.pop(key).region)
            self._copy_all()
        pending, self.pending, self._kept = self.pending, [], []
        return pending

    def remember(self, pending: list[Pending], leaves: list[Leaf]) -> None:
        """The leaves are in the store; the writer tells before it rests."""
        self._small = {}
        for item, leaf in zip(pending, leaves, strict=True):
            if item.slot is not None:
                item.slot.leaf = leaf
            elif item.ready is None and type(item.content) is bytes:
                self._small[item.content] = leaf

    def forget(self) -> None:
        """Give the memory back."""
        self._slots, self._small, self._seen, self.pending = {}, {}, {}, []
        self.arena.release()

    def _add(self, pending: Pending) -> int:
        self.pending.append(pending)
        return len(self.pending) - 1

    def _later(self, address: int, size_bytes: int, hint: object) -> int:
        """Note a block that is to be copied before the training goes on."""
        number = self._add(Pending(b""))
        self._blocks.append(_Block(address, size_bytes, hint, self.pending[-1]))
        return number

    def _slot(self, block: _Block) -> Slot:
        key = (block.address, block.size_bytes)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot(self.arena.take(block.size_bytes), block.size_bytes)
        return slot

    def _elsewhere(self, block: _Block) -> Slot:
        """Another slot for a block, whose own one is being read."""
        with self._lock:
            slot = Slot(self.arena.take(block.size_bytes), block.size_bytes)
            self._slots[block.address, block.size_bytes] = slot
        return slot

    def _copy_all(self) -> None:
        """Copy what was noted, on several cores if it is much: one alone does not fill the memory's
        bandwidth. The threads have ended when this returns."""
        elsewhere = self._elsewhere if self.beside else None
        copies = [_Copy(block, self._slot(block), elsewhere) for block in self._blocks]
        self._blocks = []
        self._copies.extend(copies)
        total = sum(item.slot.size_bytes for item in copies)
        others = []
        if total >= PARALLEL_BYTES:
            count = min(_cores(), MOST_THREADS, 1 + total // PARALLEL_BYTES) - 1
            others = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        with suppress(RuntimeError):  # no more threads for this process: fewer do the work
            for thread in others:
                thread.start()
        self._work()
        for thread in others:
            if thread.ident is not None:
                thread.join()
        self.copied_bytes = sum(item.slot.size_bytes for item in copies if item.slot.leaf is None)

    def _work(self) -> None:
        while True:
            try:
                self._copies.popleft().run()
            except IndexError:
                return


@dataclass
class _Block:
    """Memory that is to be copied for a leaf."""

    address: int
    size_bytes: int
    hint: object
    pending: Pending


@dataclass
class _Copy:
    """A block and its slot; copied only if it is not what the slot holds already. `elsewhere` gives
    another slot, where this one must not be written."""

    block: _Block
    slot: Slot
    elsewhere: Callable[[_Block], Slot] | None

    def run(self) -> None:
        block, slot = self.block, self.slot
        unseen = block.hint is None or block.hint == slot.hint
        worth_comparing = self.elsewhere is not None or (slot.leaf is not None and unseen)
        same = worth_comparing and memory.equal(
            slot.region.address, block.address, block.size_bytes
        )
        if not same:
            slot = slot if self.elsewhere is None else self.elsewhere(block)
            slot.leaf = None
            memory.copy(slot.region.address, block.address, block.size_bytes)
        slot.hint = block.hint
        pending = block.pending
        pending.content = memory.view(slot.region.address, block.size_bytes)
        pending.size_bytes, pending.same = block.size_bytes, same
        pending.slot, pending.leaf, pending.paged = slot, slot.leaf, True


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
