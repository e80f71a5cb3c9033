"""Columns of runs, from packs where there are some, else from rows.

A closed run is packed once: the columns of its top level in one blob, those that are short in
another, each long one in its own. A pack is valid for one revision of its run and for one format;
an invalid one is as good as none, and is written again by whoever reads the run next. So is one
whose bytes are damaged: each carries a checksum.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flor.errors import StoreError
from flor.store import blobs
from flor.store.collector import collector_paused
from flor.store.columns import (
    Column,
    Columns,
    Loop,
    Path,
    Site,
    columns_from_rows,
    labels_from_rows,
    loops_from_rows,
)
from flor.store.database import Database

__all__ = ["Column", "Columns", "NameInfo", "names", "pack", "paths_of", "read_columns"]

TOP = ""  # the part that holds the columns of the top level
SHORT = "*"  # the part that holds short columns in loops
SHORT_COUNT = 32
TOP_COUNT = 2000  # a longer column of the top level is in a part of its own

RunColumns = dict[str, list[Column]]


@dataclass(frozen=True)
class NameInfo:
    """A name that was logged somewhere in the project."""

    name: str
    paths: tuple[Path, ...]  # the loop paths that it was logged in
    is_arg: bool
    count: int  # records


def read_columns(db: Database, run_pks: Sequence[int], names: Sequence[str] | None) -> Columns:
    """The columns of runs, all of them or those of some names. Every run has an entry."""
    found: Columns = {run_pk: {} for run_pk in run_pks}
    wanted = None if names is None else frozenset(names)
    with collector_paused():
        packed = _read_packs(db, found, wanted)
        rest = [run_pk for run_pk in found if run_pk not in packed]
        closed = _closed(db, rest)
        for run_pk in rest:
            if run_pk not in closed:
                found[run_pk] = _read_rows(db, run_pk, wanted)
                continue
            columns = _read_rows(db, run_pk, None)
            # Reading goes on where writing is not allowed or has to wait.
            with contextlib.suppress(StoreError), db.transaction():
                _write(db, run_pk, closed[run_pk], columns)
            found[run_pk] = {
                name: columns[name] for name in columns if wanted is None or name in wanted
            }
    return found


def names(db: Database) -> dict[str, NameInfo]:
    """All names that were logged, for suggestions."""
    rows = db.execute(
        "select name, path, is_arg, records from names where projid = coalesce(?, projid) "
        "order by name, path",
        (db.scope,),
    )
    found: dict[str, NameInfo] = {}
    for name, text, is_arg, count in rows:
        path = tuple(json.loads(text))
        before = found.get(name) or NameInfo(name, (), False, 0)
        paths = before.paths if path in before.paths else (*before.paths, path)
        found[name] = NameInfo(
            name, paths, before.is_arg or bool(is_arg), before.count + int(count)
        )
    return found


def pack(db: Database, run_pk: int, revision: int) -> None:
    """Write the packs of a closed run, inside the transaction that closed it."""
    _write(db, run_pk, revision, _read_rows(db, run_pk, None))


def paths_of(db: Database, run_pk: int) -> dict[int, Path]:
    """The path of each loop of a run, by loop_pk; 0 is the top level."""
    return {loop_pk: loop.path for loop_pk, loop in _loops(db, run_pk, {}).items()}


def _loops(db: Database, run_pk: int, labels: Mapping[int, Mapping[int, Any]]) -> dict[int, Loop]:
    return loops_from_rows(
        db.execute(
            "select loop_pk, name, parent_pk, parent_iteration from loop_instances "
            "where run_pk = ? order by loop_pk",
            (run_pk,),
        ),
        labels,
    )


def _closed(db: Database, run_pks: list[int]) -> dict[int, int]:
    """The revisions of those runs that are closed."""
    if not run_pks:
        return {}
    sql = "select run_pk, revision from runs where closed and run_pk in_list(?)"
    return dict(db.execute(sql, (run_pks,)))


def _read_packs(db: Database, found: Columns, wanted: frozenset[str] | None) -> set[int]:
    """Add what valid packs hold; the runs that have them, undamaged."""
    sql = (
        "select p.run_pk, p.part, p.content from packs p "
        "join runs r on r.run_pk = p.run_pk and r.revision = p.revision "
        "where p.format = ? and p.run_pk in_list(?)"
    )
    params: list[object] = [blobs.FORMAT, list(found)]
    if wanted is not None:
        sql += " and p.part in_list(?)"
        params.append([TOP, SHORT, *(f"={name}" for name in wanted)])
    packed, mixed, damaged = set(), set(), set()
    for run_pk, part, content in db.execute(sql, params):
        if part == TOP:
            packed.add(run_pk)
        try:
            blobs.decode(content, wanted, found[run_pk])
        except blobs.Damaged:
            damaged.add(run_pk)
        if part != TOP:
            mixed.add(run_pk)
    for run_pk in damaged:
        found[run_pk] = {}
    for run_pk in mixed:  # columns of one name come from several parts
        for columns in found[run_pk].values():
            columns.sort(key=_path)
    return packed - damaged


def _path(column: Column) -> Path:
    return column.path


def _read_rows(db: Database, run_pk: int, wanted: frozenset[str] | None) -> RunColumns:
    """Columns made from rows, as they are now."""
    if wanted is None:
        rows = db.execute(
            "select site_pk, seq, loop_pk, iteration, kind, num, txt from records where run_pk = ?",
            (run_pk,),
        )
        site_rows = db.execute(
            "select site_pk, name, is_arg from sites where site_pk in_list(?)",
            (sorted({row[0] for row in rows}),),
        )
    else:
        site_rows = db.execute(
            "select site_pk, name, is_arg from sites where name in_list(?)", (sorted(wanted),)
        )
        rows = db.execute(
            "select site_pk, seq, loop_pk, iteration, kind, num, txt from records "
            "where run_pk = ? and site_pk in_list(?)",
            (run_pk, [row[0] for row in site_rows]),
        )
    if not rows:
        return {}
    labels = labels_from_rows(
        db.execute(
            "select v.loop_pk, v.iteration, v.value from loop_instances i "
            "join loop_values v on v.loop_pk = i.loop_pk where i.run_pk = ?",
            (run_pk,),
        )
    )
    sites = {site_pk: Site(name, bool(is_arg)) for site_pk, name, is_arg in site_rows}
    return columns_from_rows(rows, sites, _loops(db, run_pk, labels), labels)


def _write(db: Database, run_pk: int, revision: int, columns: RunColumns) -> None:
    parts: dict[str, list[tuple[str, Column]]] = {TOP: []}
    for name, several in columns.items():
        for column in several:
            parts.setdefault(_part(name, column), []).append((name, column))
    db.execute("delete from packs where run_pk = ?", (run_pk,))
    db.executemany(
        "insert into packs (run_pk, part, revision, format, content) values (?, ?, ?, ?, ?)",
        [
            (run_pk, part, revision, blobs.FORMAT, blobs.encode(held))
            for part, held in parts.items()
        ],
    )


def _part(name: str, column: Column) -> str:
    if not column.path and len(column.values) <= TOP_COUNT:
        return TOP
    return SHORT if column.path and len(column.values) <= SHORT_COUNT else f"={name}"
