"""Which memory of the objects to restore takes which bytes.

What shares memory here may not have shared it when the checkpoint was taken: a dictionary that
holds the weights themselves now may have held copies of earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flor.checkpoint import arrays

COMPARED_BYTES = 8 * 1024 * 1024  # at a time


class Claim(NamedTuple):
    """Memory from `start` to `end` takes a leaf; byte for byte, if it is `plain`."""

    start: int
    end: int
    leaf: int
    plain: bool


class Claims:
    """Memory that was promised. `content` gives the bytes of a leaf."""

    def __init__(self, content: Callable[[int], memoryview]) -> None:
        self._content = content
        self._claims: dict[int, list[Claim]] = {}  # by where the memory begins that they are in

    def take(self, block: Any, node: dict[str, Any], *, asked: bool) -> bool:
        """Whether a tensor or array may take the bytes of a node in its place.

        If it was `asked` for by name it may; else only where that spoils nothing. A view of memory
        that takes the same bytes anyway stays a view.
        """
        if not _is_like(block, node):
            return True  # it is replaced, not changed
        known = self._claims.setdefault(arrays.origin(block), [])
        start = arrays.address(block)
        claim = Claim(start, start + arrays.size_of(block), node["leaf"], _is_plain(block, node))
        if claim in known:
            return True
        if not asked and not all(self._agree(claim, other) for other in known):
            return False
        known.append(claim)
        return True

    def _agree(self, one: Claim, other: Claim) -> bool:
        # The same place with another leaf: they were apart, even if their bytes are the same now.
        if one[:2] == other[:2] or not (one.plain and other.plain):
            return one.start == other.start and one.leaf == other.leaf
        start, end = max(one.start, other.start), min(one.end, other.end)
        if start >= end:
            return True
        parts = [
            self._content(item.leaf)[start - item.start : end - item.start] for item in (one, other)
        ]
        return all(
            bytes(parts[0][at : at + COMPARED_BYTES]) == bytes(parts[1][at : at + COMPARED_BYTES])
            for at in range(0, end - start, COMPARED_BYTES)
        )


def _is_like(block: Any, node: dict[str, Any]) -> bool:
    dtype = getattr(block.dtype, "str", None) or str(block.dtype).removeprefix("torch.")
    return bool(list(block.shape) == node["shape"] and dtype == node["dtype"])


def _is_plain(block: Any, node: dict[str, Any]) -> bool:
    """Whether the bytes lie in its memory as they do in the leaf."""
    if not hasattr(block, "data_ptr"):
        flags = block.flags
        return bool(flags.c_contiguous if node.get("order") == "C" else flags.f_contiguous)
    if block.is_conj() or block.is_neg():
        return False
    if "stride" in node:
        return bool(list(block.stride()) == node["stride"])
    return bool(block.is_contiguous())
