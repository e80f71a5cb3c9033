"""What the newest checkpoint holds, to tell whether anything has changed since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flor.checkpoint.manifest import Manifest, Node
from flor.checkpoint.staging import Pending

NUMBERS = ("leaf", "id", "to")  # of a node; they may differ though the values are the same
MAPS = {"attributes": 2, "traces": 2, "grads": 1, "buffers": 1, "metadata": 1}
"""Parts of a node that are no nodes but name some; or (2) name what names some."""


@dataclass(frozen=True)
class Kept:
    """A checkpoint that was taken last; it has no gradients of the parameters in `cleared`."""

    manifest: Manifest
    pending: Sequence[Pending]
    cleared: set[int]

    def holds(self, other: Manifest, pending: Sequence[Pending]) -> bool:
        """Whether another one at the end of the loop has nothing new in its objects and variables.

        Bytes are compared, but for those that come from a device: of these torch has told.
        """
        values = _variables(other)
        before = {key: item for key, item in _variables(self.manifest).items() if key in values}
        same = self._same(self.manifest.objects, other.objects, pending)
        return same and self._same(before, values, pending)

    def _same(self, ours: dict[str, Node], others: dict[str, Node], pending: Any) -> bool:
        waiting: list[tuple[Any, Any, int]] = [(ours, others, 1)]
        while waiting:
            one, other, maps = waiting.pop()
            if type(one) is not type(other):
                return False
            if isinstance(one, list):
                if len(one) != len(other):
                    return False
                waiting += [(*pair, 0) for pair in zip(one, other, strict=True)]
            elif not isinstance(one, dict):
                if one != other and not (one != one and other != other):  # noqa: PLR0124 - NaN
                    return False
            elif one.keys() - {"id"} != other.keys() - {"id"} and not maps:
                return False
            elif maps:
                if one.keys() != other.keys():
                    return False
                waiting += [(one[key], other[key], maps - 1) for key in one]
            else:
                if "leaf" in one and not self._is(one["leaf"], pending[other["leaf"]]):
                    return False
                parts = one.keys() - set(NUMBERS)
                waiting += [(one[key], other[key], _maps(one, key)) for key in parts]
        return True

    def _is(self, leaf: int, other: Pending) -> bool:
        one = self.pending[leaf]
        if other.ready is not None:
            return True
        if one.slot is not None or other.slot is not None:
            return other.slot is one.slot and other.same
        return one.ready is None and bytes(one.content) == bytes(other.content)


def _variables(manifest: Manifest) -> dict[str, Node]:
    """Those of the main loop itself."""
    return manifest.frames[0].values if manifest.frames else {}


def _maps(node: dict[str, Any], part: str) -> int:
    if part == "of":
        return int(node["t"] in ("map", "instance"))
    return MAPS.get(part, 0)
