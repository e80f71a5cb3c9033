"""Runs by name, and what there is to say about one. No pandas: `flor runs` should be quick."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from flor.errors import UnknownRun
from flor.model import Status
from flor.store import cells
from flor.store.database import Database

COLUMNS = (
    "run_pk, run_id, projid, tstamp, filename, status, ended, seconds, prefix_seconds, "
    "suffix_seconds, exit_code, error, traceback, version_id, commit_id, argv, cwd, host, "
    "user_name, pid, python, platform, parent, rank, origin, environment"
)


@dataclass(frozen=True)
class RunRow:
    """A run as the database has it; times are naive and local."""

    run_pk: int
    run_id: str
    projid: str
    tstamp: datetime
    filename: str
    status: Status
    ended: datetime | None
    seconds: float | None
    prefix_seconds: float | None
    suffix_seconds: float | None
    exit_code: int | None
    error: str | None
    traceback: str | None
    version_id: int | None
    commit_id: str | None
    argv: list[str]
    cwd: str
    host: str
    user_name: str
    pid: int
    python: str
    platform: str
    parent: str | None
    rank: int | None
    origin: str
    environment: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        hidden = ("run_pk", "version_id", "environment")
        shown = {key: value for key, value in vars(self).items() if key not in hidden}
        times = {key: shown[key].isoformat(sep=" ") for key in ("tstamp", "ended") if shown[key]}
        return shown | times | {"status": self.status.value}


@dataclass(frozen=True)
class Metric:
    """A logged name of one run: how often, and its newest value."""

    name: str
    is_arg: bool
    last: Any
    source: str = ""


@dataclass(frozen=True)
class VersionRow:
    commit_id: str
    user_branch: str | None
    user_commit: str | None
    user_dirty: bool
    partial: bool
    left_out: list[dict[str, Any]] = field(default_factory=list)


def list_runs(db: Database, limit: int | None = None) -> list[RunRow]:
    """The newest runs of the project, oldest of them first."""
    sql = f"select {COLUMNS} from runs"  # noqa: S608 - our own columns
    params: list[Any] = []
    if db.scope is not None:
        sql += " where projid = ?"
        params.append(db.scope)
    sql += " order by tstamp desc, run_id desc"
    if limit is not None:
        sql += " limit ?"
        params.append(limit)
    return [_row(row) for row in reversed(db.execute(sql, params))]


def count_runs(db: Database) -> int:
    if db.scope is None:
        return int(db.execute("select count(*) from runs")[0][0])
    return int(db.execute("select count(*) from runs where projid = ?", (db.scope,))[0][0])


def find_run(db: Database, text: str) -> RunRow:
    """The run that `text` names: `latest`, `-2`, an id, or a unique beginning or end of one.

    Raises UnknownRun.
    """
    if text == "latest":
        text = "-1"
    if text.startswith("-") and text[1:].isdigit():
        back = int(text[1:])
        newest = list_runs(db, max(back, 1))
        if 0 < back <= len(newest):
            return newest[-back]
        raise UnknownRun(f"there is no run {text}: the project has {count_runs(db)} runs")
    ids = _ids(db)
    found = [run_id for run_id in ids if run_id == text] or [
        run_id for run_id in ids if run_id.startswith(text) or run_id.endswith(f"-{text}")
    ]
    if len(found) == 1:
        sql = f"select {COLUMNS} from runs where run_id = ?"  # noqa: S608 - our own columns
        return _row(db.execute(sql, (found[0],))[0])
    if not found:
        raise UnknownRun(f"no run is called {text!r}; `flor runs` lists them")
    shown = ", ".join(sorted(found)[-3:])
    raise UnknownRun(f"{len(found)} runs begin with {text!r}, such as {shown}; type more of it")


def previous_run(db: Database, run: RunRow) -> RunRow | None:
    """The run of the same script before this one."""
    earlier = [other for other in list_runs(db) if other.filename == run.filename]
    position = [other.run_id for other in earlier].index(run.run_id)
    return earlier[position - 1] if position else None


def version_of(db: Database, run: RunRow) -> VersionRow | None:
    if run.version_id is None:
        return None
    sql = (
        "select commit_id, user_branch, user_commit, user_dirty, partial, left_out "
        "from versions where version_id = ?"
    )
    commit, branch, user_commit, dirty, partial, left_out = db.execute(sql, (run.version_id,))[0]
    return VersionRow(commit, branch, user_commit, bool(dirty), bool(partial), json.loads(left_out))


def metrics(db: Database, runs: Sequence[RunRow]) -> dict[str, list[Metric]]:
    """The names that each run logged, in the order of their statements, with the newest value."""
    keys = {run.run_pk: run.run_id for run in runs}
    rows = db.execute(
        "select run_pk, sites from journals where run_pk in_list(?) order by run_pk, file_no",
        (list(keys),),
    )
    wanted = [(run_pk, site) for run_pk, sites in rows for site in json.loads(sites).values()]
    sites = _sites(db, sorted({site for _, site in wanted}))
    found: dict[str, dict[str, Metric]] = {run_id: {} for run_id in keys.values()}
    for run_pk, site in wanted:
        last = db.execute(
            "select kind, num, txt from records where run_pk = ? and site_pk = ? "
            "order by origin desc, seq desc limit 1",
            (run_pk, site),
        )
        if last and site in sites:
            name, is_arg, source = sites[site]
            found[keys[run_pk]][name] = Metric(name, is_arg, cells.value(*last[0]), source)
    return {run_id: list(names.values()) for run_id, names in found.items()}


def data_files(db: Database, run: RunRow) -> list[dict[str, Any]]:
    rows = db.execute(
        "select path, size_bytes, digest, declared, note from data_files "
        "where run_pk = ? order by path",
        (run.run_pk,),
    )
    keys = ("path", "size_bytes", "digest", "declared", "note")
    return [dict(zip(keys, row, strict=True)) | {"declared": bool(row[3])} for row in rows]


def notes(db: Database, run: RunRow) -> list[str]:
    rows = db.execute(
        "select text from notes where run_pk = ? order by file_no, note_no", (run.run_pk,)
    )
    return [row[0] for row in rows]


def loops(db: Database, run: RunRow) -> list[dict[str, Any]]:
    """Each loop by name: how often it ran, its iterations, its seconds."""
    rows = db.execute(
        "select name, count(*), sum(entries), sum(seconds), min(loop_pk) from loop_instances "
        "where run_pk = ? group by name order by min(loop_pk)",
        (run.run_pk,),
    )
    keys = ("name", "times", "iterations", "seconds")
    return [dict(zip(keys, row[:4], strict=True)) for row in rows]


def local_time(text: str | None) -> datetime | None:
    """The database's UTC text as a naive local time."""
    if text is None:
        return None
    utc = datetime.fromisoformat(text).replace(tzinfo=timezone.utc)
    return utc.astimezone().replace(tzinfo=None)


def _sites(db: Database, keys: list[int]) -> dict[int, tuple[str, bool, str]]:
    rows = db.execute(
        "select site_pk, name, is_arg, source from sites where site_pk in_list(?)", (keys,)
    )
    return {row[0]: (row[1], bool(row[2]), row[3]) for row in rows}


def _row(row: tuple[Any, ...]) -> RunRow:
    values = dict(zip((name.strip() for name in COLUMNS.split(",")), row, strict=True))
    started = local_time(values["tstamp"])
    assert started is not None
    return RunRow(
        **values
        | {
            "tstamp": started,
            "ended": local_time(values["ended"]),
            "status": Status(values["status"]),
            "argv": json.loads(values["argv"]),
            "environment": json.loads(values["environment"]),
        }
    )


def _ids(db: Database) -> list[str]:
    if db.scope is None:
        rows = db.execute("select run_id from runs")
    else:
        rows = db.execute("select run_id from runs where projid = ?", (db.scope,))
    return [row[0] for row in rows]
