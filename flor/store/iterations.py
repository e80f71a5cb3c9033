"""The iterations of loops as columns, so that a table may have a row for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flor.errors import QueryError
from flor.store.columns import (
    Column,
    Columns,
    Loop,
    Path,
    labels_from_rows,
    level_labels,
    loop_name,
    loops_from_rows,
    make,
)
from flor.store.database import Database

MAX_ITERATIONS = 100_000_000  # in one table; a damaged journal may claim billions

Stretch = tuple[Loop, int, int]
"""A loop, and its iterations from the first one to the one before the second."""


def loop_names(db: Database, names: Sequence[str]) -> list[str]:
    """Those of the names that loops of the project have, in their order."""
    if not names:
        return []
    rows = db.execute(
        "select distinct i.name from loop_instances i join runs r on r.run_pk = i.run_pk "
        "where i.name in_list(?) and r.projid = coalesce(?, r.projid)",
        (list(names), db.scope),
    )
    found = {row[0] for row in rows}
    return [name for name in names if name in found]


def read_iterations(db: Database, run_pks: Sequence[int], names: Sequence[str]) -> Columns:
    """A column for each loop path that ends with one of the names: `true` in every iteration.

    Every run has an entry. Two executions of one loop in the same context are one, as everywhere.
    Raises QueryError for more iterations than a table may have.
    """
    loops: dict[int, list[tuple[int, str, int, int]]] = {run_pk: [] for run_pk in run_pks}
    entries: dict[int, dict[int, int]] = {run_pk: {} for run_pk in run_pks}
    for run_pk, loop_pk, name, parent_pk, iteration, count in db.execute(
        "select run_pk, loop_pk, name, parent_pk, parent_iteration, entries from loop_instances "
        "where run_pk in_list(?) order by loop_pk",
        (list(run_pks),),
    ):
        loops[run_pk].append((loop_pk, name, parent_pk, iteration))
        if name in names:
            entries[run_pk][loop_pk] = count
    check_iterations(sum(sum(counts.values()) for counts in entries.values()))
    labels = labels_from_rows(
        db.execute(
            "select v.loop_pk, v.iteration, v.value from loop_instances i "
            "join loop_values v on v.loop_pk = i.loop_pk where i.run_pk in_list(?)",
            (list(run_pks),),
        )
    )
    found: Columns = {}
    for run_pk, rows in loops.items():
        columns: dict[str, list[Column]] = {}
        for path, stretches in _stretches(loops_from_rows(rows, labels), entries[run_pk]).items():
            columns.setdefault(loop_name(path[-1]), []).append(_column(path, stretches, labels))
        found[run_pk] = columns
    return found


def check_iterations(count: int) -> None:
    """Raises QueryError for more than one table should have."""
    if count > MAX_ITERATIONS:
        raise QueryError(
            f"the loops have {count:,} iterations, more than the {MAX_ITERATIONS:,} that one table "
            "may have; if that cannot be true, a journal is damaged: remove that run's folder"
        )


def _stretches(loops: Mapping[int, Loop], entries: Mapping[int, int]) -> dict[Path, list[Stretch]]:
    """The iterations of each path, every context once."""
    found: dict[Path, list[Stretch]] = {}
    done: dict[tuple[Path, tuple[int, ...]], int] = {}
    for loop_pk, count in entries.items():
        loop = loops[loop_pk]
        first = done.get((loop.path, loop.prefix), 0)
        if count > first:
            found.setdefault(loop.path, []).append((loop, first, count))
            done[loop.path, loop.prefix] = count
    return found


def _column(
    path: Path, stretches: Sequence[Stretch], labels: Mapping[int, Mapping[int, Any]]
) -> Column:
    counts = np.array([last - first for _, first, last in stretches], np.int64)
    at = np.repeat(np.arange(len(stretches)), counts)
    dims = np.empty((len(at), len(path)), np.int64)
    dims[:, :-1] = np.array([loop.prefix for loop, _, _ in stretches], np.int64)[at]
    dims[:, -1] = np.concatenate([np.arange(first, last) for _, first, last in stretches])
    chains = np.array([loop.chain for loop, _, _ in stretches], np.int64)[at]
    values = np.ones(len(at), np.bool_)
    return make(path, dims, level_labels(labels, chains, dims), values, False)
