"""Columns to one table: the pivoted view over many runs.

Pure: numpy and pandas, no database and no files. `pivot` gives one row per context in which
something was logged, `summary` one row per run.

**Columns.** First the dimensions: `projid`, `tstamp`, `filename`, `run_id`; then one column per
loop, outer before inner, with the number of the iteration, each followed by `<loop>_value` if the
loop yielded scalars other than that number; then `nth`, if some name was logged several times in
one context. After them the requested names, in their order. A logged name that is also a dimension
gets the column `<name>_logged`; a requested name that is only a loop's name is that dimension,
with a row for each of its iterations unless another requested name was logged in that loop.

**Rows.** Within a run a context is the path of (loop, iteration) around a statement; two executions
of the same loop are one. Values join on the context that they share:

    lr = 0.1                     epoch  step  lr   acc  loss
    epoch 0                          0     0  0.1  0.8   1.5
        step 0   loss = 1.5          0     1  0.1  0.8   1.2
        step 1   loss = 1.2          1  <NA>  0.1  0.9   NaN
        acc = 0.8
    epoch 1
        acc = 0.9

- Rows are the innermost contexts in which a requested name was logged.
- What was logged once in an outer context repeats on every row inside it. An outer context with no
  row inside (epoch 1 above) has a row of its own, with nulls in the inner dimensions.
- Sibling loops (`epoch/train`, `epoch/val`) are stacked: the other loop's dimension is null.
  They are never multiplied.
- A name logged several times in one context makes rows `nth` = 0, 1, 2…; several such names pair
  by their order, and a name logged once in that context repeats on all of these rows.
- An outer value that cannot repeat inside, because its name was logged several times in that outer
  context or was logged again deeper inside it, stands in a row of its own with nulls in the inner
  dimensions. So no value is lost, and none is multiplied.
- An argument read again with the same value in the same context is one value.
- A run that logged none of the names has one row, null but for its dimensions: what hindsight
  replay can fill.

Rows are ordered by (`tstamp`, `run_id`), then by the iterations, outermost first, where "not in
this loop" comes last, then by `nth`. Types are those of `flor.store.arrays`; iterations are
`int64`, or `Int64` where some row is not in the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from flor.store.arrays import Array, Bools, Cells, Ints, from_items, masked, strings, unify
from flor.store.contexts import (
    NTH,
    ROOM,
    Axis,
    Node,
    Path,
    contexts,
    dimension_names,
    dimensions,
)

if TYPE_CHECKING:
    from flor.store.packs import Column

    RunColumns = Mapping[str, Sequence[Column]]


class RunRow(NamedTuple):
    """What the frame shows of a run; `tstamp` is naive local time."""

    run_pk: int
    projid: str
    tstamp: datetime
    filename: str
    run_id: str
    status: str = ""
    seconds: float | None = None


class _Found(NamedTuple):
    """What the runs logged of one name."""

    run: list[int]  # of each item
    items: list[Any]  # values logged alone at the top level
    columns: list[tuple[int, Column]]  # everything else, with its run


@dataclass(eq=False)
class _Series:
    """One name over all runs: its values, and on which axes they stand."""

    cells: Cells
    axes: dict[Path, Axis]
    offset: dict[Path, int]  # of each path's first value in `cells`
    labels: dict[Path, list[list[Array | None]]]  # per path and level: an array per piece
    sizes: dict[Path, Ints]


@dataclass(eq=False)
class _Rows:
    """The rows that stand in the contexts of one node."""

    node: Node
    context: Ints
    nth: Ints


def pivot(
    runs: Sequence[RunRow],
    columns: Mapping[int, RunColumns],
    names: Sequence[str],
    paths: Iterable[Path] = (),
    silent: Collection[str] = (),
) -> pd.DataFrame:
    """The table of these names over these runs; the module's docstring says what it means.

    The loops of `paths` have a column even if no run here logged in them. The `silent` ones of the
    names make rows like the others, and have no column.
    """
    runs = in_order(runs)
    axes: list[Axis] = []
    found = _found((columns.get(run.run_pk, {}) for run in runs), dict.fromkeys(names))
    series = {name: _series(each, axes) for name, each in found.items()}
    nodes = contexts(axes, len(runs))
    for each in series.values():
        _label(each, nodes)
    groups = [rows for node in nodes.values() if len((rows := _rows(node, series)).context)]
    dims = dimensions([*(axis.path for axis in axes), *paths])
    order = _order(groups, dims)

    run = _joined([rows.node.lift(rows.context, 0) for rows in groups], order)
    frame = _run_dimensions(runs, run)
    for dim in dims:
        _add_dimension(frame, dim, groups, order)
    if any(bool((axis.count > 1).any()) for axis in axes) or (
        NTH in series and not series[NTH].axes
    ):
        frame[NTH] = _joined([rows.nth for rows in groups], order)
    taken = {*frame, NTH}
    for name, each in series.items():
        if name not in silent and (each.axes or name not in frame):
            column = _free(name, taken)
            at = _joined([_positions(each, rows) for rows in groups], order)
            frame[column] = each.cells.take(at)
    return pd.DataFrame(frame)


def summary(runs: Sequence[RunRow], columns: Mapping[int, RunColumns]) -> pd.DataFrame:
    """One row per run: its dimensions, status and seconds, its arguments, its run-level values.

    An argument counts wherever it was read; other names only if logged outside of every loop. Of
    several values of a name, the last one.
    """
    runs = in_order(runs)
    frame = _run_dimensions(runs, np.arange(len(runs)))
    frame["status"] = strings([run.status for run in runs])
    seconds = [np.nan if run.seconds is None else run.seconds for run in runs]
    frame["seconds"] = np.array(seconds, np.float64)
    taken = {*frame, NTH}
    attributes = last_values((columns.get(run.run_pk, {}) for run in runs), len(runs))
    for wanted in (True, False):
        for name, (values, is_arg) in attributes.items():
            if is_arg == wanted:
                frame[_free(name, taken)] = values
    return pd.DataFrame(frame)


def in_order(runs: Sequence[RunRow]) -> list[RunRow]:
    return sorted(runs, key=lambda run: (run.tstamp, run.run_id))


def last_values(per_run: Iterable[RunColumns], runs: int) -> dict[str, tuple[Any, bool]]:
    """Names as attributes of runs: an array with one cell per run, and whether it is an argument.

    Of several values the last one; values logged in loops count only for arguments.
    """
    found: dict[str, tuple[list[int], list[Any]]] = {}
    arguments: set[str] = set()
    for index, logged in enumerate(per_run):
        for name, columns in logged.items():
            for column in columns:
                if (column.path and not column.is_arg) or not len(column.values):
                    continue
                if column.is_arg:
                    arguments.add(name)
                where, items = found.setdefault(name, ([], []))
                where.append(index)
                items.append(column.values[-1:].item())
    attributes = {}
    for name, (where, items) in found.items():
        at = np.full(runs, -1, np.int64)
        at[where] = np.arange(len(where))
        attributes[name] = (unify([from_items(items)]).take(at), name in arguments)
    return attributes


def _found(per_run: Iterable[RunColumns], names: Iterable[str]) -> dict[str, _Found]:
    """What all runs logged of these names.

    One pass in the order of the runs: with very many runs, walking memory once is what counts.
    """
    found = {name: _Found([], [], []) for name in names}
    sinks = [(name, each.run, each.items, each.columns) for name, each in found.items()]
    for index, logged in enumerate(per_run):
        for name, run, items, columns in sinks:
            for column in logged.get(name, ()):
                values = column.values
                if len(values) == 1 and not column.path:
                    run.append(index)
                    items.append(values.item())
                elif len(values):
                    columns.append((index, column))
    return found


def _series(found: _Found, axes: list[Axis]) -> _Series:
    """One name of all runs; `axes` grows by those that no name before stood on."""
    groups: dict[Path, list[tuple[int, Column]]] = {(): []} if found.items else {}
    for index, column in found.columns:
        groups.setdefault(column.path, []).append((index, _read_once(column)))
    series = _Series(Cells(np.empty(0)), {}, {}, {}, {})
    pieces: list[Array] = []
    for path, members in groups.items():
        values = [column.values for _, column in members]
        sizes = np.array([len(each) for each in values], np.int64)
        run = np.repeat(np.array([index for index, _ in members], np.int64), sizes)
        if not path and found.items:
            values = [from_items(found.items), *values]
            run = np.concatenate([np.array(found.run, np.int64), run])
        dims: Ints = np.empty((len(run), 0), np.int64)
        if path:
            dims = np.concatenate([column.dims for _, column in members])
        series.offset[path] = sum(map(len, pieces))
        series.axes[path] = _shared(Axis(path, run, dims), axes)
        series.sizes[path] = sizes
        series.labels[path] = [[col.labels[i] for _, col in members] for i in range(len(path))]
        pieces += values
    series.cells = unify(pieces)
    return series


def _read_once(column: Column) -> Column:
    """An argument without its repeated readings; any other column as it is."""
    if not column.is_arg or len(column.values) == 1:
        return column
    seen: dict[tuple[int, ...], list[Any]] = {}
    keep = []
    for index, value in enumerate(column.values.tolist()):
        before = seen.setdefault(tuple(column.dims[index].tolist()), [])
        if not any(type(old) is type(value) and old == value for old in before):
            before.append(value)
            keep.append(index)
    labels = tuple(None if label is None else label[keep] for label in column.labels)
    return replace(column, dims=column.dims[keep], labels=labels, values=column.values[keep])


def _shared(axis: Axis, axes: list[Axis]) -> Axis:
    """The equal axis that a recent name has, so that its contexts are worked out once."""
    for known in reversed(axes[-8:]):
        if axis.same(known):
            return known
    axes.append(axis)
    return axis


def _label(series: _Series, nodes: Mapping[Path, Node]) -> None:
    """Write what the loops yielded into the nodes; the first one to know a context is believed."""
    for path, axis in series.axes.items():
        for level, pieces in enumerate(series.labels[path]):
            if all(piece is None for piece in pieces):
                continue
            sizes = series.sizes[path]
            labels = np.concatenate(
                [
                    np.full(size, None, dtype=object) if piece is None else piece
                    for piece, size in zip(pieces, sizes, strict=True)
                ]
            )
            node = nodes[path[: level + 1]]
            if node.label is None:
                node.label = np.full(len(node.up), None, dtype=object)
            known = np.flatnonzero([label is not None for label in labels.tolist()])[::-1]
            contexts = axis.at[level + 1][known]
            fresh = np.array([label is None for label in node.label[contexts].tolist()], np.bool_)
            node.label[contexts[fresh]] = labels[known[fresh]]


def _repeats(series: _Series, node: Node) -> Bools:
    """Per context of the node: whether this name's value repeats on the rows inside."""
    axis = series.axes[node.path]
    repeats: Bools = node.inner & (axis.count == 1)
    depth = len(node.path)
    for path, deeper in series.axes.items():
        if len(path) > depth and path[:depth] == node.path:
            repeats[deeper.at[depth]] = False
    return repeats


def _rows(node: Node, series: Mapping[str, _Series]) -> _Rows:
    """As many rows per context as the values need that do not repeat inside."""
    size = len(node.up)
    height = np.zeros(size, np.int64)
    for each in series.values():
        axis = each.axes.get(node.path)
        if axis is not None:
            alone = (
                np.where(_repeats(each, node), 0, axis.count) if node.inner.any() else axis.count
            )
            np.maximum(height, alone, out=height)
    if not node.path:
        height[(height == 0) & ~node.inner] = 1
    context = np.repeat(np.arange(size), height)
    first = np.cumsum(height) - height
    return _Rows(node, context, np.arange(len(context)) - first[context])


def _positions(series: _Series, rows: _Rows) -> Ints:
    """For each row, which of the name's values stands there; -1: none."""
    positions = np.full(len(rows.context), -1, np.int64)
    node: Node | None = rows.node
    context = rows.context
    while node is not None:
        axis = series.axes.get(node.path)
        if axis is not None:
            if node is rows.node:
                count = axis.count[context]
                here = (count == 1) | (rows.nth < count)
                step = np.where(count == 1, 0, rows.nth)
            else:
                here, step = _repeats(series, node)[context], np.zeros(1, np.int64)
            sorted_position = (axis.start[context] + step)[here]
            positions[here] = axis.position(sorted_position) + series.offset[node.path]
        context, node = node.up[context], node.parent
    return positions


def _order(groups: Sequence[_Rows], dims: Sequence[str]) -> Ints | None:
    """The order of the rows of all groups, one after the other; None: they stand in it."""
    if len(groups) <= 1:
        own = dimension_names(groups[0].node.path) if groups else ()
        if own == tuple(dim for dim in dims if dim in own):
            return None
    keys = [_joined([rows.node.lift(rows.context, 0) for rows in groups])]
    for dim in dims:
        iteration, missing = _iterations(groups, dim)
        keys += [missing.astype(np.int64), np.where(missing, 0, iteration)]
    keys.append(_joined([rows.nth for rows in groups]))
    packed = _packed(keys)
    return np.lexsort(keys[::-1]) if packed is None else np.argsort(packed, kind="stable")


def _packed(keys: Sequence[Ints]) -> Ints | None:
    """Several sort keys as one number, most significant first; None: they do not fit."""
    packed: Ints = np.zeros(len(keys[0]), np.int64)
    room = 1
    for key in keys:
        low, high = (int(key.min()), int(key.max())) if len(key) else (0, 0)
        room *= high - low + 1
        if room >= ROOM:
            return None
        packed = packed * (high - low + 1) + (key - low)
    return packed


def _iterations(groups: Sequence[_Rows], dim: str) -> tuple[Ints, Bools]:
    """A dimension on the rows of all groups, and where it is missing."""
    iterations, missing = [], []
    for rows in groups:
        found = _level(rows, dim)
        count = len(rows.context)
        iterations.append(
            np.zeros(count, np.int64) if found is None else found[0].iteration[found[1]]
        )
        missing.append(np.full(count, found is None))
    return _joined(iterations), np.concatenate([np.empty(0, np.bool_), *missing])


def _level(rows: _Rows, dim: str) -> tuple[Node, Ints] | None:
    """The node of a dimension and each row's context there; None: the rows are not in that loop."""
    names = dimension_names(rows.node.path)
    if dim not in names:
        return None
    depth = names.index(dim) + 1
    node = rows.node
    while len(node.path) > depth and node.parent is not None:
        node = node.parent
    return node, rows.node.lift(rows.context, depth)


def _add_dimension(
    frame: dict[str, Any], dim: str, groups: Sequence[_Rows], order: Ints | None
) -> None:
    iteration, missing = _iterations(groups, dim)
    labels = _labels(groups, dim, iteration)
    if order is not None:
        iteration, missing = iteration[order], missing[order]
    frame[dim] = masked(iteration, missing) if missing.any() else iteration
    if labels is not None:
        at = np.arange(len(labels)) if order is None else order
        frame[_free(f"{dim}_value", set(frame), "_yielded")] = unify([labels]).take(at)


def _labels(groups: Sequence[_Rows], dim: str, iteration: Ints) -> Array | None:
    """What the loop yielded, on all rows; where that is not known, the iteration's number."""
    found = [_level(rows, dim) for rows in groups]
    if all(level is None or level[0].label is None for level in found):
        return None
    labels, first = iteration.astype(object), 0
    for rows, level in zip(groups, found, strict=True):
        last = first + len(rows.context)
        if level is None:
            labels[first:last] = None
        elif level[0].label is not None:
            own = level[0].label[level[1]]
            known = np.array([label is not None for label in own.tolist()], np.bool_)
            labels[first:last][known] = own[known]
        first = last
    return labels


def _joined(parts: Sequence[Ints], order: Ints | None = None) -> Ints:
    joined = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])
    return joined if order is None else joined[order]


def _run_dimensions(runs: Sequence[RunRow], run: Ints) -> dict[str, Any]:
    stamps = np.array([each.tstamp for each in runs], dtype="datetime64[us]")
    return {
        "projid": strings([each.projid for each in runs]).take(run),
        "tstamp": stamps[run],
        "filename": strings([each.filename for each in runs]).take(run),
        "run_id": strings([each.run_id for each in runs]).take(run),
    }


def _free(name: str, taken: set[str], suffix: str = "_logged") -> str:
    """The name of a column that no other one has; `taken` grows by it."""
    while name in taken:
        name += suffix
    taken.add(name)
    return name
