"""Rows of one run → columns: the values of one name in one loop path, and where they stand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flor.model import Kind
from flor.store import cells

Array = npt.NDArray[Any]
Path = tuple[str, ...]

FEW = 4000  # rows; below it grouping in Python is faster than sorting arrays
CTX_STRIDE = 2**31
VARIANT = "\0"  # no name has one in the database


@dataclass(frozen=True, slots=True)
class Column:
    """One name's values in one loop path of one run, in logging order. Arrays are read-only.

    `values` is float64, int64, bool, or object where they are anything else or a mixture: None,
    str, int beyond 64 bits, list, dict, StoredValue, datetime.
    """

    path: Path  # loop names, outermost first; () = top level
    dims: Array  # int64 [n, len(path)]: the iteration of each level
    labels: tuple[Array | None, ...]  # per level: what the loop yielded; None: its own number
    values: Array
    is_arg: bool


Columns = dict[int, dict[str, list[Column]]]
"""run_pk → name → columns, one for each path."""


class Site(NamedTuple):
    name: str
    is_arg: bool


class Loop(NamedTuple):
    """One execution of a loop, with what is around it."""

    path: Path
    chain: tuple[int, ...]  # loop_pk of each level, itself last
    prefix: tuple[int, ...]  # iterations of the levels around it


TOP = Loop((), (), ())


_new = object.__new__
_set_path, _set_dims, _set_labels, _set_values, _set_is_arg = (
    getattr(Column, name).__set__ for name in ("path", "dims", "labels", "values", "is_arg")
)


def make(path: Path, dims: Array, labels: Any, values: Array, is_arg: bool) -> Column:
    """A Column, in a third of the time of its own constructor: there may be millions."""
    column = _new(Column)
    _set_path(column, path)
    _set_dims(column, dims)
    _set_labels(column, labels)
    _set_values(column, values)
    _set_is_arg(column, is_arg)
    return column


_no_dims: dict[int, Array] = {}


def no_dims(count: int) -> Array:
    """The dims of `count` values at the top level."""
    found = _no_dims.get(count)
    if found is None:
        found = np.zeros((count, 0), np.int64)
        if len(_no_dims) < 1000:
            _no_dims[count] = found
    return found


def loops_from_rows(
    rows: Sequence[tuple[int, str, int, int]], labels: Mapping[int, Mapping[int, Any]]
) -> dict[int, Loop]:
    """(loop_pk, name, parent_pk, parent_iteration), parents first → loops, the top level too.

    Executions of one loop in one place share their path, and so the rows of a table, unless the
    same iteration yielded different things: `for shard in ["a", "b"]`, then `["c", "d"]`. Those
    have paths of their own, which differ in what `loop_name` takes off.
    """
    loops = {0: TOP}
    earlier: dict[tuple[int, int, str], list[int]] = {}
    for loop_pk, name, parent_pk, iteration in rows:
        parent = loops[parent_pk]
        prefix = (*parent.prefix, iteration) if parent_pk else ()
        variant = 0
        if labels:
            siblings = earlier.setdefault((parent_pk, iteration, name), [])
            agreeing = (n for n, other in enumerate(siblings) if _agree(labels, loop_pk, other))
            variant = next(agreeing, len(siblings))
            if variant == len(siblings):
                siblings.append(loop_pk)
        level = f"{name}{VARIANT}{variant}" if variant else name
        loops[loop_pk] = Loop((*parent.path, level), (*parent.chain, loop_pk), prefix)
    return loops


def loop_name(level: str) -> str:
    """The loop's name, of a level of a path."""
    return level.partition(VARIANT)[0]


def _agree(labels: Mapping[int, Mapping[int, Any]], one: int, other: int) -> bool:
    """Whether two executions of a loop yielded the same, as far as is known.

    Only iterations that logged something have a label; an execution without any yielded numbers.
    """
    left, right = labels.get(one), labels.get(other)
    if left is None or right is None:
        return left is right
    return all(left[i] == right[i] for i in left.keys() & right.keys())


def columns_from_rows(
    rows: Sequence[tuple[int, int, int, int, int, Any, Any]],
    sites: Mapping[int, Site],
    loops: Mapping[int, Loop],
    labels: Mapping[int, Mapping[int, Any]],
) -> dict[str, list[Column]]:
    """(site_pk, seq, loop_pk, iteration, kind, num, txt) → columns by name.

    `labels` has, by loop_pk, what iterations yielded.
    """
    found: dict[str, list[Column]] = {}
    if not rows:
        return found
    table = _Table(rows, loops, labels)
    for (name, path), (where, is_arg) in table.groups(sites).items():
        found.setdefault(name, []).append(table.column(path, where, is_arg))
    for columns in found.values():
        if len(columns) > 1:
            columns.sort(key=lambda column: column.path)
    return found


class _Table:
    """The rows as one array each."""

    def __init__(
        self,
        rows: Sequence[tuple[int, int, int, int, int, Any, Any]],
        loops: Mapping[int, Loop],
        labels: Mapping[int, Mapping[int, Any]],
    ) -> None:
        sites, seqs, loop_pks, iterations, kinds, nums, texts = zip(*rows, strict=True)
        self.rows = rows
        self.few = len(rows) < FEW
        self.sites, self.loop_pks, self.kinds = sites, loop_pks, kinds
        self.nums, self.texts = nums, texts
        self.seqs = np.array(seqs, np.int64)
        self.iterations = np.array(iterations, np.int64)
        self.loops, self.labels = loops, labels
        self._arrays: tuple[Array, Array, Array] | None = None

    def groups(self, sites: Mapping[int, Site]) -> dict[tuple[str, Path], tuple[Any, bool]]:
        """(name, path) → the places of its rows in logging order, and whether it is an argument."""
        return self._few_groups(sites) if self.few else self._many_groups(sites)

    def _few_groups(self, sites: Mapping[int, Site]) -> dict[tuple[str, Path], tuple[Any, bool]]:
        places: dict[tuple[str, Path], list[int]] = {}
        kinds: dict[tuple[str, Path], bool] = {}
        loops = self.loops
        for place, (site_pk, loop_pk) in enumerate(zip(self.sites, self.loop_pks, strict=True)):
            site = sites[site_pk]
            key = (site.name, loops[loop_pk].path)
            if key in places:
                places[key].append(place)
                kinds[key] |= site.is_arg
            else:
                places[key] = [place]
                kinds[key] = site.is_arg
        order = self.seqs.tolist()
        for where in places.values():
            if len(where) > 1:
                where.sort(key=order.__getitem__)
        return {key: (where, kinds[key]) for key, where in places.items()}

    def _many_groups(self, sites: Mapping[int, Site]) -> dict[tuple[str, Path], tuple[Any, bool]]:
        site_pks, site_at = np.unique(np.array(self.sites, np.int64), return_inverse=True)
        loop_pks, loop_at = np.unique(np.array(self.loop_pks, np.int64), return_inverse=True)
        names: dict[str, int] = {}
        paths: dict[Path, int] = {}
        is_arg: dict[int, bool] = {}
        name_of = np.empty(len(site_pks), np.int64)
        for place, site_pk in enumerate(site_pks.tolist()):
            site = sites[site_pk]
            number = name_of[place] = names.setdefault(site.name, len(names))
            is_arg[number] = is_arg.get(number, False) or site.is_arg
        path_of = np.empty(len(loop_pks), np.int64)
        for place, loop_pk in enumerate(loop_pks.tolist()):
            path_of[place] = paths.setdefault(self.loops[loop_pk].path, len(paths))
        group = name_of[site_at] * len(paths) + path_of[loop_at]
        order = np.lexsort((self.seqs, group))
        ordered = group[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        ends = np.r_[starts[1:], len(order)]
        all_names, all_paths = list(names), list(paths)
        found = {}
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            name, path = divmod(int(ordered[start]), len(paths))
            found[all_names[name], all_paths[path]] = (order[start:end], is_arg[name])
        return found

    def column(self, path: Path, where: Any, is_arg: bool) -> Column:
        count = len(where)
        if not path:
            return make((), no_dims(count), (), self.values(where), is_arg)
        loop_pks = [self.loop_pks[place] for place in where]
        used = sorted(set(loop_pks))
        at = np.searchsorted(np.array(used), np.array(loop_pks))
        dims = np.empty((count, len(path)), np.int64)
        dims[:, :-1] = np.array([self.loops[loop_pk].prefix for loop_pk in used], np.int64)[at]
        dims[:, -1] = self.iterations[where]
        chains = np.array([self.loops[loop_pk].chain for loop_pk in used], np.int64)
        labels = level_labels(self.labels, chains[at], dims)
        return make(path, dims, labels, self.values(where), is_arg)

    def values(self, where: Any) -> Array:
        """The values in the narrowest array that holds them exactly."""
        if len(where) == 1:
            place = int(where[0])
            kinds = {self.kinds[place]}
        elif self.few:
            kinds = {self.kinds[place] for place in where}
        else:
            kinds = set(np.unique(self._bulk()[0][where]).tolist())
        if len(kinds) == 1 and (kind := next(iter(kinds))) in (Kind.FLOAT, Kind.INT, Kind.BOOL):
            found = self._numbers(kind, where)
            if found is not None:
                return found
        found = np.empty(len(where), object)
        for index, place in enumerate(where):
            found[index] = cells.value(self.kinds[place], self.nums[place], self.texts[place])
        return found

    def _numbers(self, kind: int, where: Any) -> Array | None:
        """An array of one kind of number; None for ints of which one does not fit 64 bits."""
        if not self.few:
            _, nums, written = self._bulk()
            picked: Array = nums[where]
            if kind == Kind.FLOAT:
                return picked
            if kind == Kind.BOOL:
                return np.not_equal(picked, 0)
            if not written[where].any():
                return picked.astype(np.int64)
        if kind == Kind.FLOAT:
            return np.array([self.nums[place] for place in where], np.float64)
        if kind == Kind.BOOL:
            return np.array([self.nums[place] != 0 for place in where], np.bool_)
        ints = [int(self.texts[place] or self.nums[place]) for place in where]
        if min(ints) < -(2**63) or max(ints) >= 2**63:
            return None
        return np.array(ints, np.int64)

    def _bulk(self) -> tuple[Array, Array, Array]:
        """Kinds, nums (NULL is NaN) and whether there is text, of all rows."""
        if self._arrays is None:
            self._arrays = (
                np.array(self.kinds, np.int8),
                np.array(self.nums, np.float64),
                np.array([text is not None for text in self.texts], np.bool_),
            )
        return self._arrays


def level_labels(
    labels: Mapping[int, Mapping[int, Any]], chains: Array, dims: Array
) -> tuple[Array | None, ...]:
    """What the loops of each level yielded, or None for a level where that is always the number.

    `chains` has the loop_pk and `dims` the iteration of every level, [n, levels].
    """
    levels = range(dims.shape[1])
    return tuple(_labels(labels, chains[:, level], dims[:, level]) for level in levels)


def _labels(
    labels: Mapping[int, Mapping[int, Any]], loop_pks: Array, iterations: Array
) -> Array | None:
    if not any(loop_pk in labels for loop_pk in set(loop_pks.tolist())):
        return None
    contexts, at = np.unique(loop_pks * CTX_STRIDE + iterations, return_inverse=True)
    distinct = np.empty(len(contexts), object)
    empty: dict[int, Any] = {}
    differs = False
    for place, context in enumerate(contexts.tolist()):
        loop_pk, iteration = divmod(context, CTX_STRIDE)
        yielded = labels.get(loop_pk, empty)
        differs = differs or iteration in yielded
        distinct[place] = yielded.get(iteration, iteration)
    found: Array = distinct[at]
    return found if differs else None


def labels_from_rows(rows: Sequence[tuple[int, int, str]]) -> dict[int, dict[int, Any]]:
    """(loop_pk, iteration, JSON) → what each loop yielded."""
    labels: dict[int, dict[int, Any]] = {}
    for loop_pk, iteration, text in rows:
        labels.setdefault(loop_pk, {})[iteration] = json.loads(text)
    return labels
