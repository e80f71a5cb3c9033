"""What SQL queries see of the database, as frames: runs, versions, args, logs, loops and data.

Times are naive and local. Texts that no database would take were escaped when they were stored.
`logs` and `loops` have the columns of FlorDB's relations of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from flor.store.arrays import Array, masked, strings
from flor.store.collector import collector_paused
from flor.store.database import Database
from flor.store.frames import RunRow
from flor.store.iterations import check_iterations
from flor.store.schema import CTX_STRIDE

RUNS = {
    "run_id": "text",
    "projid": "text",
    "tstamp": "time",
    "filename": "text",
    "status": "text",
    "ended": "time",
    "seconds": "real",
    "prefix_seconds": "real",
    "suffix_seconds": "real",
    "exit_code": "int",
    "error": "text",
    "traceback": "text",
    "version_id": "int",
    "commit_id": "text",
    "branch": "text",
    "argv": "text",
    "cwd": "text",
    "host": "text",
    "user_name": "text",
    "pid": "int",
    "python": "text",
    "platform": "text",
    "parent": "text",
    "rank": "int",
    "origin": "text",
    "environment": "text",
}
VERSIONS = {
    "version_id": "int",
    "commit_id": "text",
    "tree_id": "text",
    "user_branch": "text",
    "user_commit": "text",
    "user_dirty": "flag",
    "partial": "flag",
    "left_out": "text",
}
ARGS = {"run_id": "text", "name": "text", "value": "text", "source": "text", "projid": "text"}
DATA = {
    "run_id": "text",
    "path": "text",
    "size_bytes": "int",
    "mtime_ns": "int",
    "digest": "text",
    "declared": "flag",
    "note": "text",
}
PACKED_KINDS = 16  # kinds are below it: a site and a kind travel as one number
LOGGED = f"""case c.packed % {PACKED_KINDS}
    when 0 then null
    when 1 then case when c.num = 0 then 'false' else 'true' end
    when 2 then coalesce(c.txt, cast(cast(c.num as bigint) as varchar))
    when 3 then coalesce(cast(c.num as varchar), 'nan')
    else c.txt
  end"""
LOGS = {
    "projid": "r.projid",
    "tstamp": "r.tstamp",
    "filename": "s.filename",
    "ctx_id": "nullif(c.ctx, -1)",
    "value_name": "s.name",
    "value": LOGGED,
    "value_type": f"c.packed % {PACKED_KINDS}",
    "run_id": "r.run_id",
}


def run_rows(db: Database) -> list[RunRow]:
    """All runs of the project, in no order."""
    rows = db.execute(
        "select run_pk, projid, tstamp, filename, run_id, status, seconds from runs "
        "where projid = coalesce(?, projid)",
        (db.scope,),
    )
    return [RunRow(row[0], row[1], local_time(row[2]), *row[3:]) for row in rows]


def local_time(utc: str) -> datetime:
    """What the clock on the wall showed, of a UTC time as the database keeps it."""
    moment = datetime.fromisoformat(utc).replace(tzinfo=timezone.utc)
    return moment.astimezone().replace(tzinfo=None)


def runs(db: Database, columns: Collection[str] = RUNS) -> pd.DataFrame:
    """The runs, or some of what there is to know about them."""
    wanted = {name: kind for name, kind in RUNS.items() if name in columns}
    selected = ", ".join("v.user_branch" if name == "branch" else f"r.{name}" for name in wanted)
    sql = (
        f"select {selected} from runs r left join versions v on v.version_id = r.version_id "  # noqa: S608 - names from RUNS
        "where r.projid = coalesce(?, r.projid) order by r.tstamp, r.run_id"
    )
    return _frame(wanted, db.execute(sql, (db.scope,)))


def versions(db: Database) -> pd.DataFrame:
    rows = db.execute(
        "select v.version_id, commit_id, tree_id, user_branch, user_commit, user_dirty, partial, "
        "left_out from versions v where cast(? as text) is null or exists "
        "(select 1 from runs r where r.version_id = v.version_id and r.projid = ?) "
        "order by v.version_id",
        (db.scope, db.scope),
    )
    return _frame(VERSIONS, rows)


def args(db: Database) -> pd.DataFrame:
    rows = db.execute(
        "select run_id, name, value, source, projid from args where projid = coalesce(?, projid)",
        (db.scope,),
    )
    return _frame(ARGS, rows)


def data(db: Database) -> pd.DataFrame:
    rows = db.execute(
        "select r.run_id, d.path, d.size_bytes, d.mtime_ns, d.digest, d.declared, d.note "
        "from data_files d join runs r on r.run_pk = d.run_pk "
        "where r.projid = coalesce(?, r.projid) order by r.tstamp, r.run_id, d.path",
        (db.scope,),
    )
    return _frame(DATA, rows)


def loops(db: Database) -> pd.DataFrame:
    """One row per iteration. `loop_value` is JSON: what the loop yielded, if that says more."""
    instances = db.execute(
        "select i.loop_pk, i.parent_pk, i.parent_iteration, i.entries, i.name, r.projid, r.run_id "
        "from loop_instances i join runs r on r.run_pk = i.run_pk "
        "where r.projid = coalesce(?, r.projid) and i.entries > 0 order by i.loop_pk",
        (db.scope,),
    )
    yielded = db.execute(
        "select v.loop_pk, v.iteration, v.value from loop_values v "
        "join loop_instances i on i.loop_pk = v.loop_pk join runs r on r.run_pk = i.run_pk "
        "where r.projid = coalesce(?, r.projid)",
        (db.scope,),
    )
    numbers = np.array([row[:4] for row in instances], np.int64).reshape(-1, 4)
    loop_pk, parent_pk, parent_iteration, entries = numbers.T
    check_iterations(int(entries.sum()))
    at = np.repeat(np.arange(len(instances)), entries)
    iteration = np.arange(len(at)) - np.repeat(np.cumsum(entries) - entries, entries)
    ctx = loop_pk[at] * CTX_STRIDE + iteration
    place = np.full(len(at), -1, np.int64)
    known = np.array([pk * CTX_STRIDE + step for pk, step, _ in yielded], np.int64)
    found = np.searchsorted(ctx, known)
    inside = found < len(ctx)
    inside[inside] = ctx[found[inside]] == known[inside]
    place[found[inside]] = np.flatnonzero(inside)
    parent = parent_pk * CTX_STRIDE + parent_iteration
    text = {name: strings([row[i] for row in instances]) for name, i in _LOOP_TEXTS.items()}
    return pd.DataFrame(
        {
            "ctx_id": ctx,
            "parent_ctx_id": masked(parent[at], (parent_pk == 0)[at]),
            "loop_name": text["loop_name"].take(at),
            "loop_entries": entries[at],
            "loop_iteration": iteration,
            "loop_value": strings([row[2] for row in yielded]).take(place, allow_fill=True),
            "projid": text["projid"].take(at),
            "run_id": text["run_id"].take(at),
        }
    )


_LOOP_TEXTS = {"loop_name": 4, "projid": 5, "run_id": 6}


def create_logs(
    connection: duckdb.DuckDBPyConnection, db: Database, columns: Collection[str] = LOGS
) -> None:
    """Give a DuckDB connection the view `logs`, with the columns that are asked for.

    DuckDB joins runs and statements to the values: fetching them a million times would take longer.
    """
    with_context, with_value = "ctx_id" in columns, "value" in columns
    records = _records(db, with_context, with_value)
    sites = db.execute("select site_pk, filename, name from sites")
    runs_ = db.execute(
        "select run_pk, projid, tstamp, run_id from runs where projid = coalesce(?, projid)",
        (db.scope,),
    )
    kinds = {"site_pk": "int", "filename": "text", "name": "text"}
    connection.register("_sites", _frame(kinds, sites))
    kinds = {"run_pk": "int", "projid": "text", "tstamp": "time", "run_id": "text"}
    connection.register("_runs", _frame(kinds, runs_))
    connection.register("_records", records)
    shown = ", ".join(f"{sql} as {name}" for name, sql in LOGS.items() if name in columns)
    connection.execute(
        f"create view logs as select {shown or 'r.run_id'} from _records c "  # noqa: S608 - our own
        "join _runs r on r.run_pk = c.run_pk "
        f"join _sites s on s.site_pk = c.packed // {PACKED_KINDS}"
    )


def _records(db: Database, with_context: bool, with_value: bool) -> pd.DataFrame:
    """Every logged value, in as few columns as will do."""
    selected = [f"c.site_pk * {PACKED_KINDS} + c.kind", "c.run_pk"]
    if with_context:
        selected.append(
            f"case when c.loop_pk = 0 then -1 else c.loop_pk * {CTX_STRIDE} + c.iteration end"
        )
    if with_value:
        selected += ["c.num", "c.txt"]
    sql = f"select {', '.join(selected)} from records c"  # noqa: S608 - our own columns
    if db.scope is not None:
        sql += " join runs r on r.run_pk = c.run_pk where r.projid = ?"
    with collector_paused():
        rows = db.execute(sql, () if db.scope is None else (db.scope,))
        parts = iter(zip(*rows, strict=True) if rows else ((),) * len(selected))
        del rows
        packed, run_pk = next(parts), next(parts)
        frame: dict[str, Any] = {
            "packed": np.array(packed, np.int64),
            "run_pk": np.array(run_pk, np.int64),
        }
        if with_context:
            frame["ctx"] = np.array(next(parts), np.int64)
        if with_value:
            frame["num"] = np.array(next(parts), np.float64)
            frame["txt"] = strings(next(parts))
    return pd.DataFrame(frame)


def _frame(kinds: dict[str, str], rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    return pd.DataFrame(
        {
            name: _TYPED[kind](column)
            for (name, kind), column in zip(kinds.items(), columns, strict=True)
        }
    )


def _times(utc: Sequence[str | None]) -> Array:
    known = {text: local_time(text) for text in set(utc) if text is not None}
    moments = [None if text is None else known[text] for text in utc]
    return np.array(moments, "datetime64[us]")


def _numbers(dtype: Any) -> Callable[[Sequence[Any]], Any]:
    def typed(items: Sequence[Any]) -> Any:
        missing = np.array([item is None for item in items], np.bool_)
        values = np.array([0 if item is None else item for item in items], dtype)
        return masked(values, missing) if missing.any() else values

    return typed


_TYPED: dict[str, Callable[[Sequence[Any]], Any]] = {
    "text": strings,
    "time": _times,
    "int": _numbers(np.int64),
    "flag": _numbers(np.bool_),
    "real": lambda items: np.array(items, np.float64),
}
