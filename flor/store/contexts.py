"""The contexts that values stand in: a tree of loop iterations, for many runs at once.

Pure. A context is a run and an iteration of every loop around a statement. All contexts of one
path of loops, over all runs, are numbered 0, 1, 2… in the order of (run, iterations…); joining
columns of different depths is then arithmetic on these numbers, with no loop over runs or rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from flor.store.arrays import Array, Bools, Ints
from flor.store.columns import loop_name

Path = tuple[str, ...]

RUN_DIMENSIONS = ("projid", "tstamp", "filename", "run_id")
NTH = "nth"
ROOM = 2**62  # keys stay below it, clear of overflow


@dataclass(eq=False)
class Axis:
    """Where values stand: n times a run and an iteration of every loop of one path."""

    path: Path
    run: Ints  # [n]
    dims: Ints  # [n, len(path)]
    at: list[Ints] = field(default_factory=list)  # per depth: the context's number in its node
    order: Ints | None = None  # positions by context, then as logged; None: they already are
    count: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # values per context
    start: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # first position in order

    def same(self, other: Axis) -> bool:
        return (
            self.path == other.path
            and np.array_equal(self.run, other.run)
            and np.array_equal(self.dims, other.dims)
        )

    def index(self, size: int) -> None:
        """Fill `order`, `count` and `start`, once `at` is known."""
        ids = self.at[-1]
        if len(ids) > 1 and bool((ids[1:] < ids[:-1]).any()):
            self.order = np.argsort(ids, kind="stable")
        self.count = np.bincount(ids, minlength=size)
        self.start = np.cumsum(self.count) - self.count

    def position(self, sorted_position: Ints) -> Ints:
        return sorted_position if self.order is None else self.order[sorted_position]


@dataclass(eq=False)
class Node:
    """All contexts of one path, over all runs, numbered in the order of (run, iterations…)."""

    path: Path
    parent: Node | None
    up: Ints  # [size] the number of the context around it
    iteration: Ints  # [size]
    inner: Bools  # [size] whether something was logged deeper inside
    label: Array | None = None  # [size] what the loop yielded; None where not known

    def lift(self, contexts: Ints, depth: int) -> Ints:
        """The contexts around these, at an outer depth."""
        node = self
        while len(node.path) > depth and node.parent is not None:
            contexts, node = node.up[contexts], node.parent
        return contexts


def contexts(axes: Sequence[Axis], runs: int) -> dict[Path, Node]:
    """The contexts of every path and of the paths around it; fills the axes' `at`."""
    everyone = np.arange(runs)
    root = Node((), None, everyone, everyone, np.zeros(runs, np.bool_))
    nodes: dict[Path, Node] = {(): root}
    for axis in axes:
        axis.at = [axis.run]
    for depth in range(max((len(axis.path) for axis in axes), default=0)):
        members: dict[Path, list[Axis]] = {}
        for axis in axes:
            if len(axis.path) > depth:
                members.setdefault(axis.path[: depth + 1], []).append(axis)
        for path, group in members.items():
            nodes[path] = _node(path, nodes[path[:-1]], group)
    for axis in axes:
        axis.index(len(nodes[axis.path].up))
    return nodes


def _node(path: Path, parent: Node, axes: Sequence[Axis]) -> Node:
    depth = len(path) - 1
    steps = [axis.dims[:, depth] for axis in axes]
    low, high = min(int(step.min()) for step in steps), max(int(step.max()) for step in steps)
    width = high - low + 1
    ranks: Ints | None = None
    if width * (len(parent.up) + 1) >= ROOM:  # absurd iterations: number those that there are
        ranks = np.unique(np.concatenate(steps))
        steps = [np.searchsorted(ranks, step) for step in steps]
        low, width = 0, len(ranks)
    keys = [axis.at[-1] * width + (step - low) for axis, step in zip(axes, steps, strict=True)]
    contexts = _union([_distinct(key) for key in keys])
    for axis, key in zip(axes, keys, strict=True):
        axis.at.append(np.arange(len(key)) if key is contexts else np.searchsorted(contexts, key))
    up, iteration = np.divmod(contexts, width)
    iteration = iteration + low if ranks is None else ranks[iteration]
    parent.inner[up] = True
    return Node(path, parent, up, iteration, np.zeros(len(contexts), np.bool_))


def _distinct(keys: Ints) -> Ints:
    """Sorted, each once. Logging order is mostly sorted already, which costs one pass."""
    rises = keys[1:] > keys[:-1]
    if rises.all():
        return keys
    if (keys[1:] >= keys[:-1]).all():
        first: Ints = keys[np.concatenate([[True], rises])]
        return first
    return np.unique(keys)


def _union(parts: list[Ints]) -> Ints:
    first = parts[0]
    if all(len(part) == len(first) and bool((part == first).all()) for part in parts[1:]):
        return first
    return np.unique(np.concatenate(parts))


def dimension_names(path: Path) -> Path:
    """The dimension of each level; a loop inside a loop of the same name is `<loop>_2`."""
    dims: list[str] = []
    for loop in map(loop_name, path):
        dim = f"{loop}_loop" if loop in RUN_DIMENSIONS or loop == NTH else loop
        level = 2
        while dim in dims:
            dim, level = f"{loop}_{level}", level + 1
        dims.append(dim)
    return tuple(dims)


def dimensions(paths: Iterable[Path]) -> list[str]:
    """All loop dimensions: outer before inner, else in order of first appearance."""
    outer: dict[str, set[str]] = {}
    for dims in dict.fromkeys(dimension_names(path) for path in paths):
        for level, dim in enumerate(dims):
            outer.setdefault(dim, set()).update(dims[:level])
    ordered: list[str] = []
    while outer:
        # Loops nested both ways round have no outermost one: then the first that appeared.
        ready = (dim for dim, around in outer.items() if not around & outer.keys())
        ordered.append(next(ready, next(iter(outer))))
        del outer[ordered[-1]]
    return ordered
