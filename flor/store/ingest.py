"""Journals → database, whoever queries first; doing it again changes nothing.

The folder's listing is compared with the runs that are closed, so that runs which ended cost
nothing. The others are read from where the last reading stopped, in transactions that hold whole
runs: another process sees all of what was read or none, and waits while it is written.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from flor.claim import is_alive
from flor.config import Settings
from flor.model import Status
from flor.store import fields, journals
from flor.store.collector import collector_paused
from flor.store.database import Database
from flor.store.rows import Known, RunRows, path_text

BATCH_BYTES = 4 * 1024 * 1024  # of journals in one transaction, for small runs
BATCH_RUNS = 500
PACK_RECORDS = 100_000  # a longer run is packed when its columns are read first
DOUBT_DAYS = 7  # for so long, a run that looked dead may write again: its machine slept
DOUBTED_RUNS = 1000  # of those, no more are looked at each time
MAX_BAD_LINES = 1_000_000  # a payload with more is no journal

_RUN_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")


class Repository(Protocol):
    """Where the journals of other clones come from."""

    def journals(self, known: Container[str] = ()) -> Iterable[tuple[str, bytes]]: ...


@dataclass(frozen=True)
class IngestReport:
    """What one call of `ingest` did."""

    runs: int = 0  # whose rows changed
    records: int = 0
    bad_lines: int = 0  # torn or senseless lines among those that were read
    running: int = 0  # runs still in progress
    unreadable: tuple[str, ...] = field(default=())  # run ids whose files could not be opened

    def __add__(self, other: IngestReport) -> IngestReport:
        return IngestReport(
            self.runs + other.runs,
            self.records + other.records,
            self.bad_lines + other.bad_lines,
            self.running + other.running,
            self.unreadable + other.unreadable,
        )


def ingest(
    settings: Settings,
    db: Database,
    *,
    repository: Repository | None = None,
    full: bool = False,
) -> IngestReport:
    """Bring the database up to date with `.flor/runs` and, if given, with the branch.

    A run that was taken for dead and has written since is read on, if that was lately. With
    `full`, all closed runs whose files changed since are forgotten and read again.
    """
    if full:
        _forget_changed(settings.runs_dir, db)
    now = datetime.now(timezone.utc).replace(tzinfo=None)
    for run_id in grown(settings, db, after=now - timedelta(days=DOUBT_DAYS)):
        with db.transaction():
            _reopen(db, run_id)
    report = IngestReport()
    known = Known()
    for batch in _batches(settings.runs_dir, _listed(settings.runs_dir) - closed_runs(db)):
        with collector_paused(), db.transaction():
            for folder in batch:
                report += _read_folder(db, known, folder, settings.projid)
    if repository is not None:
        report += ingest_branch(db, repository.journals(known_runs(db)), settings.projid)
    return report


def ingest_branch(
    db: Database, payloads: Iterable[tuple[str, bytes]], projid: str = ""
) -> IngestReport:
    """Read (run id, gzip journal) pairs from the branch; runs that are known already are skipped.

    `projid` is for a journal that has lost its first line.
    """
    report = IngestReport()
    known = Known()
    present = known_runs(db)
    for batch in _payload_batches(payloads, present):
        with collector_paused(), db.transaction():
            for run_id, payload in batch:
                report += _read_payload(db, known, run_id, payload, projid)
    return report


def known_runs(db: Database) -> set[str]:
    """The ids of all runs that the database holds."""
    return {run_id for (run_id,) in db.execute("select run_id from runs")}


def grown(
    settings: Settings, db: Database, after: datetime = datetime.min, most: int = DOUBTED_RUNS
) -> list[str]:
    """The runs that were taken for dead, at a time `after`, and have written since."""
    read = _sizes(
        db,
        "r.run_pk in (select run_pk from runs where status = ? and ended >= ? "
        "order by ended desc limit ?)",
        (Status.KILLED.value, fields.utc_text(after), most),
    )
    found = []
    for run_id, sizes in read.items():
        now = _sizes_now(settings.runs_dir / run_id)
        if any(size > sizes.get(name, 0) for name, size in now.items()):
            found.append(run_id)
    return found


def closed_runs(db: Database) -> set[str]:
    """The ids of the runs of which nothing more is expected."""
    return {run_id for (run_id,) in db.execute("select run_id from runs where closed")}


# --- folders --------------------------------------------------------------------------------------


def _listed(runs_dir: Path) -> set[str]:
    try:
        return set(os.listdir(runs_dir))  # names only: 30,000 Paths would cost more than the rest
    except OSError:
        return set()


def _batches(runs_dir: Path, run_ids: Iterable[str]) -> Iterator[list[Path]]:
    batch: list[Path] = []
    size = 0
    for run_id in sorted(run_ids):
        if not _RUN_NAME.fullmatch(run_id):
            continue
        try:
            size += (runs_dir / run_id / journals.MAIN).stat().st_size
        except OSError:
            continue  # a run that has only just made its folder, or no run at all
        batch.append(runs_dir / run_id)
        if size >= BATCH_BYTES or len(batch) >= BATCH_RUNS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_folder(db: Database, known: Known, folder: Path, projid: str) -> IngestReport:
    run_id = folder.name
    if db.execute("select 1 from runs where run_id = ? and closed", (run_id,)):
        return IngestReport()  # another process was faster
    with contextlib.ExitStack() as stack:
        try:
            opened = {
                name: stack.enter_context((folder / name).open("rb"))
                for name in journals.journal_files(folder)
            }
        except OSError:
            return IngestReport(unreadable=(run_id,))
        rows = RunRows(db, known, run_id, "local")
        written = _read_on(rows, opened)
        began = _began(rows, written)
        alive = rows.end is None and is_alive(folder, rows.run["host"], rows.run["pid"], began)
        if rows.end is None and not alive:
            written = _read_on(rows, opened)  # what it wrote before it ended, after we had read
    return _close(db, rows, projid, began, alive, (written - began).total_seconds())


def _read_on(rows: RunRows, opened: Mapping[str, BinaryIO]) -> datetime:
    """Read what is new in the files; when the last of them was written."""
    written = 0.0
    for name, source in opened.items():
        file = rows.file(name)
        stat = os.fstat(source.fileno())
        written = max(written, stat.st_mtime)
        file.size_bytes = stat.st_size
        source.seek(file.read_bytes)
        for chunk in journals.chunks(source, file.read_bytes):
            rows.add(file, chunk)
    return datetime.fromtimestamp(written, timezone.utc).replace(tzinfo=None)


def _forget_changed(runs_dir: Path, db: Database) -> None:
    """Make the closed runs whose files are not as they were read open and empty."""
    read = _sizes(db, "r.closed")
    for run_id in sorted(_listed(runs_dir) & read.keys()):
        now = _sizes_now(runs_dir / run_id)
        if now and now != read[run_id]:
            with db.transaction():
                forget(db, run_id)


def _sizes(db: Database, condition: str, params: Sequence[Any] = ()) -> dict[str, dict[str, int]]:
    """The sizes of the journal files of local, closed runs when they were read last."""
    read: dict[str, dict[str, int]] = {}
    for run_id, name, size_bytes in db.execute(
        "select r.run_id, j.name, j.size_bytes from runs r join journals j on j.run_pk = r.run_pk "  # noqa: S608 - our own conditions
        f"where {condition} and r.closed and r.origin = 'local'",
        params,
    ):
        read.setdefault(run_id, {})[name] = size_bytes
    return read


def _sizes_now(folder: Path) -> dict[str, int]:
    try:
        return {name: (folder / name).stat().st_size for name in journals.journal_files(folder)}
    except OSError:
        return {}


def _reopen(db: Database, run_id: str) -> None:
    """Let the next reading of a closed run go on where the last one stopped."""
    reopened = db.execute(
        "update runs set closed = ?, status = ?, ended = null where run_id = ? and closed "
        "and status = ? returning run_pk",
        (False, Status.RUNNING.value, run_id, Status.KILLED.value),
    )
    for (run_pk,) in reopened:  # none if another process was faster
        db.execute(  # a torn last line, which was counted, may be whole by now
            "update journals set bad_lines = bad_lines - 1 where run_pk = ? "
            "and size_bytes > read_bytes",
            (run_pk,),
        )


# --- payloads -------------------------------------------------------------------------------------


def _payload_batches(
    payloads: Iterable[tuple[str, bytes]], present: Container[str]
) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    for run_id, payload in payloads:
        if run_id not in present:
            batch.append((run_id, payload))
        if sum(len(item) for _, item in batch) >= BATCH_BYTES or len(batch) >= BATCH_RUNS:
            yield batch
            batch = []
    if batch:
        yield batch


def _read_payload(
    db: Database, known: Known, run_id: str, payload: bytes, projid: str
) -> IngestReport:
    if db.execute("select 1 from runs where run_id = ?", (run_id,)):
        return IngestReport()
    rows = RunRows(db, known, run_id, "branch")
    file = rows.file(journals.MAIN)
    source = journals.Unpacked(payload)
    for chunk in journals.chunks(source):
        if chunk.objects and chunk.objects[0].get("t") == "child":
            file = rows.file(f"child-{len(rows.files)}")
        rows.add(file, chunk)
        if file.bad_lines > MAX_BAD_LINES:
            break
    if not source.intact:
        file.bad_lines += 1
        rows.bad_lines += 1
    return _close(db, rows, projid, _began(rows, None), False, rows.last_at)


# --- the end of a reading -------------------------------------------------------------------------


def _began(rows: RunRows, written: datetime | None) -> datetime:
    """When the run began: as its journal says, else as its id does, else when it was written."""
    if rows.run["tstamp"] is not None:
        return datetime.fromisoformat(rows.run["tstamp"])
    return journals.started_at(rows.run["run_id"]) or written or datetime(1970, 1, 1)


def _close(
    db: Database, rows: RunRows, projid: str, began: datetime, alive: bool, written: float
) -> IngestReport:
    """Write how the run stands; `written` is when its journal was, in seconds since it began."""
    tstamp = fields.utc_text(began)
    changes = {"tstamp": tstamp, "projid": rows.run["projid"] or projid, "closed": not alive}
    if rows.end is not None:
        ended = fields.later(tstamp, rows.end["seconds"])
        changes |= rows.end | {"ended": ended}
    elif alive:
        so_far = datetime.now(timezone.utc).replace(tzinfo=None) - began
        changes |= {"seconds": max(so_far.total_seconds(), rows.last_at)}
    else:
        seconds = max(written, rows.last_at)
        ended = fields.later(tstamp, seconds)
        changes |= {"status": Status.KILLED.value, "seconds": seconds, "ended": ended}
    if not alive:
        _count_torn_tails(rows)
    rows.close(changes)
    if rows.run["closed"] and rows.total_records <= PACK_RECORDS:
        from flor.store import packs  # numpy, which a reading of large runs does without

        packs.pack(db, rows.run_pk, rows.run["revision"])
    return IngestReport(int(rows.changed), rows.records, rows.bad_lines, int(alive))


def _count_torn_tails(rows: RunRows) -> None:
    for file in rows.files.values():
        if file.size_bytes > file.read_bytes:
            file.bad_lines += 1
            rows.bad_lines += 1


def forget(db: Database, run_id: str) -> None:
    """Take all rows of a run away but its own, which becomes open; its next reading starts anew."""
    run_pk, projid = db.execute("select run_pk, projid from runs where run_id = ?", (run_id,))[0]
    _uncount(db, run_pk, projid)
    for statement in FORGET:
        db.execute(statement, (run_pk,))
    db.execute(
        "update runs set closed = ?, revision = revision + 1, environment = '{}', ended = null, "
        "status = ? where run_pk = ?",
        (False, Status.RUNNING.value, run_pk),
    )


def _uncount(db: Database, run_pk: int, projid: str) -> None:
    """Take the run's records out of the counts of names."""
    from flor.store.packs import paths_of

    paths = paths_of(db, run_pk)
    for name, loop_pk, count in db.execute(
        "select s.name, c.loop_pk, count(*) from records c join sites s on s.site_pk = c.site_pk "
        "where c.run_pk = ? group by s.name, c.loop_pk",
        (run_pk,),
    ):
        db.execute(
            "update names set records = records - ? where projid = ? and name = ? and path = ?",
            (count, projid, name, path_text(paths[loop_pk])),
        )
    db.execute("delete from names where records <= 0")


FORGET = (
    "delete from records where run_pk = ?",
    "delete from packs where run_pk = ?",
    "delete from loop_values where loop_pk in "
    "(select loop_pk from loop_instances where run_pk = ?)",
    "delete from times where loop_pk in (select loop_pk from loop_instances where run_pk = ?)",
    "delete from loop_instances where run_pk = ?",
    "delete from scopes where run_pk = ?",
    "delete from checkpoints where run_pk = ?",
    "delete from data_files where run_pk = ?",
    "delete from notes where run_pk = ?",
    "delete from journals where run_pk = ?",
)
