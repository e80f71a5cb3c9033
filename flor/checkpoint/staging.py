"""Copies of values, taken while the training waits; what has not changed is not copied again.

A large block of memory has a slot, found again by its address and size. If the slot still holds
the same bytes, which is proved by comparing them, the block's place in the store is known and
nothing is copied. A version counter only tells whether the comparison is worth trying.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flor.checkpoint import memory
from flor.checkpoint.manifest import Leaf

SMALL_BYTES = 64 * 1024  # smaller blocks are packed into one object

Ready = Callable[[], None]
"""Waits until the bytes are there: a device copies by itself."""


@dataclass
class Slot:
    """Memory for the copy of one block."""

    region: memory.Region
    size_bytes: int
    hint: object = None  # the block's version when it was copied
    leaf: Leaf | None = None  # where the store has these bytes; None until they are written


@dataclass
class Pending:
    """Bytes on their way to the store. `leaf` is known if they were written before."""

    content: bytes | memoryview
    leaf: Leaf | None = None
    slot: Slot | None = None
    ready: Ready | None = None
    code: bool = False  # unpickled when it is read
    keep: Any = None  # owner of the memory, where that is not the arena


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
        self.pending: list[Pending] = []
        self.copied_bytes = 0
        self.live = False  # blocks are not copied: the training waits until they are written

    def begin(self, *, live: bool = False) -> None:
        self.pending = []
        self._seen, self._kept = {}, []
        self.copied_bytes = 0
        self.live = live

    def put_block(self, address: int, size_bytes: int, hint: object, keep: Any) -> int:
        """Copy a block of the process's memory; the number of its leaf."""
        key = (address, size_bytes)
        known = self._seen.get(key)
        if known is not None:
            return known
        self._kept.append(keep)
        if size_bytes < SMALL_BYTES:
            number = self.put_bytes(ctypes.string_at(address, size_bytes))
        elif self.live:
            content = memory.view(address, size_bytes)
            number = self._add(Pending(content, keep=keep))
        else:
            number = self._copy(key, hint)
        self._seen[key] = number
        return number

    def put_bytes(self, content: bytes, *, code: bool = False) -> int:
        """Bytes that nobody changes; the number of their leaf."""
        return self._add(Pending(content, self._small.get(content), code=code))

    def put_later(self, content: memoryview, ready: Ready, keep: Any) -> int:
        """Bytes that a device is still copying; `ready` waits for them."""
        return self._add(Pending(content, ready=ready, keep=keep))

    def end(self) -> list[Pending]:
        """The leaves of this checkpoint. Slots of blocks that it does not have are free again."""
        if not self.live:
            for key in self._slots.keys() - self._seen.keys():
                self.arena.give(self._slots.pop(key).region)
        pending, self.pending, self._kept = self.pending, [], []
        return pending

    def remember(self, pending: list[Pending], leaves: list[Leaf]) -> None:
        """The leaves are in the store; the writer tells before it rests."""
        self._small = {}
        for item, leaf in zip(pending, leaves, strict=True):
            if item.slot is not None:
                item.slot.leaf = leaf
            elif type(item.content) is bytes:
                self._small[item.content] = leaf

    def forget(self) -> None:
        """Give the memory back."""
        self._slots, self._small, self._seen, self.pending = {}, {}, {}, []
        self.arena.release()

    def _add(self, pending: Pending) -> int:
        self.pending.append(pending)
        return len(self.pending) - 1

    def _copy(self, key: tuple[int, int], hint: object) -> int:
        address, size_bytes = key
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot(self.arena.take(size_bytes), size_bytes)
        target = slot.region.address
        worth_comparing = slot.leaf is not None and (hint is None or hint == slot.hint)
        if not (worth_comparing and memory.equal(target, address, size_bytes)):
            slot.leaf = None
            memory.copy(target, address, size_bytes)
            self.copied_bytes += size_bytes
        slot.hint = hint
        return self._add(Pending(memory.view(target, size_bytes), slot.leaf, slot))
