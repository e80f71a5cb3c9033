"""Journals → database."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from flor.config import Settings
from flor.store.database import Database, open_database
from flor.store.ingest import (
    MAX_BAD_LINES,
    IngestReport,
    grown,
    ingest,
    ingest_branch,
    known_runs,
)
from flor.store.packs import names
from flor.store.query import dataframe
from flor.store.rows import MAX_LOOPS
from tests.conftest import JournalWriter

Begin = Callable[..., JournalWriter]

HOLD_LOCK = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
    "print('locked', flush=True); sys.stdin.read()"
)


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    return Settings(root=tmp_path, projid="proj", database=url)


@pytest.fixture
def db(settings: Settings) -> Iterator[Database]:
    with open_database(settings) as found:
        yield found


@pytest.fixture
def alive(settings: Settings) -> Iterator[Callable[[JournalWriter], subprocess.Popen[bytes]]]:
    """Another process that holds the claim of a run."""
    holders = []

    def hold(writer: JournalWriter) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", HOLD_LOCK, str(writer.folder / "alive")]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        holders.append(holder)
        return holder

    yield hold
    for holder in holders:
        holder.kill()
        holder.communicate()


def training(writer: JournalWriter, epochs: int = 2, steps: int = 3) -> None:
    """lr; epoch 0..: (step 0..: loss), acc."""
    lr = writer.site("lr", arg=True, source="kwargs")
    loss, acc = writer.site("loss"), writer.site("acc")
    writer.log(lr, 0.1)
    writer.loop(1, "epoch", at=1.5)
    for epoch in range(epochs):
        writer.loop(epoch + 2, "step", parent=1, iteration=epoch, at=2.0 + epoch)
        for step in range(steps):
            writer.log(loss, epoch + step / 10, epoch + 2, step)
        writer.loop_end(epoch + 2, steps, at=2.5 + epoch)
        writer.log(acc, epoch, 1, epoch)
    writer.loop_end(1, epochs, at=8.0)
    writer.end(at=10.0)


def everything(db: Database) -> dict[str, list[Any]]:
    """The content of the database without the numbers that only it uses."""
    queries = {
        "runs": "select run_id, projid, tstamp, filename, status, ended, seconds, prefix_seconds, "
        "suffix_seconds, exit_code, error, commit_id, argv, host, user_name, pid, environment, "
        "closed from runs",
        "logs": "select * from logs",
        "loops": "select run_id, loop_name, loop_entries, loop_iteration, loop_value from loops",
        "args": "select * from args",
        "names": "select * from names",
        "data": "select path, digest from data_files",
        "times": "select first_iteration, iterations, seconds, each_seconds from times",
        "journals": "select file_no, name, read_bytes, records, bad_lines from journals",
        "versions": "select commit_id, user_branch, user_dirty, left_out from versions",
    }
    return {name: sorted(db.execute(sql), key=repr) for name, sql in queries.items()}


# --- what a run becomes ---------------------------------------------------------------------------


def test_one_run(settings: Settings, db: Database, journal: Begin) -> None:
    training(journal())

    assert ingest(settings, db) == IngestReport(runs=1, records=9)

    columns = "status, tstamp, ended, seconds, prefix_seconds, suffix_seconds, exit_code, origin"
    assert db.execute(f"select {columns} from runs") == [
        (
            *("finished", "2026-11-18 19:03:12.000250", "2026-11-18 19:03:22.000250"),
            *(10.0, 1.5, 2.0, 0, "local"),
        )
    ]
    assert db.execute("select name, value, source from args") == [("lr", "0.1", "kwargs")]
    assert (
        db.execute(
            "select l.value_name, l.value, l.value_type, o.loop_name, o.loop_iteration, "
            "p.loop_name, p.loop_iteration from logs l "
            "join loops o on o.ctx_id = l.ctx_id left join loops p on p.ctx_id = o.parent_ctx_id "
            "where l.value_name = 'loss' or l.value = '1' order by 1, 2"
        )
        == [
            ("acc", "1", 2, "epoch", 1, None, None),
            ("loss", "0.0", 3, "step", 0, "epoch", 0),
            ("loss", "0.1", 3, "step", 1, "epoch", 0),
            ("loss", "0.2", 3, "step", 2, "epoch", 0),
            ("loss", "1.0", 3, "step", 0, "epoch", 1),
            ("loss", "1.1", 3, "step", 1, "epoch", 1),
            ("loss", "1.2", 3, "step", 2, "epoch", 1),
        ]
        or db.dialect == "postgres"
    )
    assert db.execute("select count(*), sum(loop_entries) from loops") == [(8, 22)]
    found = names(db)
    assert found["loss"].paths == (("epoch", "step"),)
    assert (found["loss"].count, found["lr"].is_arg, found["acc"].is_arg) == (6, True, False)


def test_again_changes_nothing(settings: Settings, db: Database, journal: Begin) -> None:
    training(journal())
    ingest(settings, db)
    before = everything(db)

    assert ingest(settings, db) == IngestReport()
    assert ingest(settings, db, full=True) == IngestReport()
    assert everything(db) == before


def test_every_kind_of_line(settings: Settings, db: Database, journal: Begin) -> None:
    writer = journal()
    left_out = {"path": "big.bin", "size_bytes": 99, "reason": "too large"}
    version = {"commit": "c0ffee", "tree": "7ree", "left_out": [left_out], "partial": False}
    version |= {"user_branch": "main", "user_commit": "abc", "user_dirty": True}
    writer.lines(
        {"t": "version", **version},
        {"t": "env", "packages": {"numpy": "2.0"}, "devices": ["cpu"]},
        {"t": "seeds", "at": 0.5, "random": "x"},
        {"t": "data", "path": "a.csv", "size_bytes": 1, "mtime_ns": 2, "digest": None},
        {"t": "data", "path": "a.csv", "size_bytes": 1, "mtime_ns": 2, "digest": "blake2b:1"},
        {"t": "loop", "id": 1, "name": "epoch", "parent": 0, "iteration": 0, "len": 2, "at": 1},
        {"t": "scope", "id": 1, "names": ["net"], "loop": 1, "iteration": 1, "at": 1.5},
        {"t": "scope_end", "id": 1, "at": 1.75},
        {"t": "value", "loop": 1, "iteration": 1, "value": "warm"},
        {"t": "times", "loop": 1, "first": 0, "n": 2, "sum": 0.5, "each": "AAAA"},
        {"t": "note", "text": "first"},
        {"t": "note", "text": "second"},
        {"t": "of a newer flor", "x": 1},
    )
    writer.loop_end(1, 2, done=False)
    writer.end("failed", error="ValueError: no", traceback="Traceback…", exit_code=1)

    assert ingest(settings, db).bad_lines == 0

    assert db.execute("select commit_id, tree_id, user_dirty, partial, left_out from versions") == [
        ("c0ffee", "7ree", True, False, json.dumps([left_out]))
    ]
    ((environment, version_id, status, error),) = db.execute(
        "select environment, version_id, status, error from runs"
    )
    assert json.loads(environment) == {
        "packages": {"numpy": "2.0"},
        "devices": ["cpu"],
        "seeds": {"at": 0.5, "random": "x"},
    }
    assert (version_id, status, error) == (1, "failed", "ValueError: no")
    assert db.execute("select path, digest from data_files") == [("a.csv", "blake2b:1")]
    assert db.execute("select names, iteration, started, ended from scopes") == [
        ('["net"]', 1, 1.5, 1.75)
    ]
    assert db.execute("select text from notes order by note_no") == [("first",), ("second",)]
    assert db.execute("select length, entries, seconds, done from loop_instances") == [
        (2, 2, 1.0, False)
    ]
    assert db.execute("select loop_iteration, loop_value from loops order by 1") == [
        (0, None),
        (1, '"warm"'),
    ]


def test_runs_share_sites_and_versions(settings: Settings, db: Database, journal: Begin) -> None:
    for number in range(3):
        writer = journal(f"20261118-190312-00000{number}")
        writer.lines({"t": "version", "commit": "c", "tree": "t", "left_out": []})
        training(writer)

    assert ingest(settings, db) == IngestReport(runs=3, records=27)

    assert db.execute("select count(*) from sites") == [(3,)]
    assert db.execute("select version_id from runs") == [(1,)] * 3
    assert names(db)["loss"].count == 18


# --- child processes ------------------------------------------------------------------------------


def test_child_logs_in_the_context_that_it_inherited(
    settings: Settings, db: Database, journal: Begin
) -> None:
    # epoch 3 . fork: [child: seen, work 0..1: part]
    writer = journal()
    writer.loop(1, "epoch")
    child = writer.child(99, loop=1, iteration=3)
    seen, part = child.site("seen"), child.site("part")
    child.log(seen, "here")
    child.loop(1, "work")
    for item in range(2):
        child.log(part, item, 1, item)
    child.loop_end(1, 2)
    writer.loop_end(1, 4)
    writer.end()

    assert ingest(settings, db) == IngestReport(runs=1, records=3)

    inside = db.execute(
        "select l.value_name, o.loop_name, o.loop_iteration, p.loop_name, p.loop_iteration "
        "from logs l join loops o on o.ctx_id = l.ctx_id "
        "left join loops p on p.ctx_id = o.parent_ctx_id order by 1, 3"
    )
    assert inside == [
        ("part", "work", 0, "epoch", 3),
        ("part", "work", 1, "epoch", 3),
        ("seen", "epoch", 3, None, None),
    ]


def test_child_that_appears_later(
    settings: Settings,
    db: Database,
    journal: Begin,
    alive: Callable[[JournalWriter], Any],
) -> None:
    writer = journal()
    alive(writer)
    site = writer.site("a")
    writer.log(site, 1)
    assert ingest(settings, db).records == 1

    child = writer.child(99)
    child.log(child.site("b"), 2)
    writer.log(site, 3)
    assert ingest(settings, db).records == 2

    order = db.execute("select num from records order by seq")
    assert order == [(1,), (3,), (2,)], "a child's records come after those of the main process"


# --- runs in progress -----------------------------------------------------------------------------


def test_live_run_is_read_on(
    settings: Settings,
    db: Database,
    journal: Begin,
    alive: Callable[[JournalWriter], Any],
) -> None:
    """A run that is read after every line ends with the rows of one that is read once."""
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    whole = journal("20261118-190312-bbbbbb", tstamp=now)
    training(whole)
    lines = whole.path.read_bytes().splitlines(keepends=True)
    live = JournalWriter(settings.runs_dir, "20261118-190312-aaaaaa")
    alive(live)

    for number, line in enumerate(lines):
        live.lines(line[:9])
        ingest(settings, db)
        live.lines(line[9:])
        report = ingest(settings, db)
        if number < len(lines) - 1:
            assert report.running == 1
            ((status, seconds),) = db.execute(
                "select status, seconds from runs where run_id = ?", (live.run_id,)
            )
            assert status == "running"
            assert 0 <= seconds < 3600

    assert ingest(settings, db) == IngestReport()
    for table in ("logs", "loops", "args"):
        columns = {"logs": "value_name, value, value_type", "args": "name, value, source"}
        sql = f"select {columns.get(table, 'loop_name, loop_entries, loop_iteration')} from {table}"
        own, other = (
            sorted(db.execute(f"{sql} where run_id = ?", (writer.run_id,)))
            for writer in (live, whole)
        )
        assert own == other


def test_open_loop_shows_the_iterations_so_far(
    settings: Settings,
    db: Database,
    journal: Begin,
    alive: Callable[[JournalWriter], Any],
) -> None:
    writer = journal()
    alive(writer)
    site = writer.site("loss")
    writer.loop(1, "epoch")
    writer.log(site, 0.5, 1, 4)
    ingest(settings, db)
    assert db.execute("select entries, done from loop_instances") == [(5, None)]

    writer.log(site, 0.5, 1, 7)
    ingest(settings, db)
    assert db.execute("select entries, done from loop_instances") == [(8, None)]

    writer.loop_end(1, 9)
    ingest(settings, db)
    assert db.execute("select entries, done from loop_instances") == [(9, True)]


def test_killed_run(
    settings: Settings,
    db: Database,
    journal: Begin,
    alive: Callable[[JournalWriter], Any],
) -> None:
    writer = journal()
    holder = alive(writer)
    writer.loop(1, "epoch", at=2)
    writer.log(writer.site("loss"), 0.5, 1, 0)
    writer.lines(b"[1, 1, 1, 0.")
    moment = datetime(2026, 11, 18, 19, 5, 12, 250, timezone.utc).timestamp()
    os.utime(writer.path, (moment, moment))
    assert ingest(settings, db).running == 1
    assert db.execute("select status, closed from runs") == [("running", False)]

    holder.kill()
    holder.wait()
    report = ingest(settings, db)

    assert (report.running, report.bad_lines) == (0, 1), "the torn line is counted in the end"
    assert db.execute("select status, ended, seconds, suffix_seconds, closed from runs") == [
        ("killed", "2026-11-18 19:05:12.000250", 120.0, None, True)
    ]


def test_killed_run_that_grew_is_read_again_by_full(
    settings: Settings, db: Database, journal: Begin
) -> None:
    writer = journal(tstamp="2020-11-18T19:03:12.000250Z")
    site = writer.site("loss")
    writer.log(site, 0.5)
    age(writer, days=8)
    ingest(settings, db)
    assert db.execute("select status from runs") == [("killed",)]

    writer.log(site, 0.25)
    child = writer.child(9)
    child.log(child.site("loss"), 3)
    writer.end()
    assert grown(settings, db) == [writer.run_id]
    assert ingest(settings, db) == IngestReport()
    assert ingest(settings, db, full=True) == IngestReport(runs=1, records=3)

    assert db.execute("select status, revision from runs") == [("finished", 3)]
    assert db.execute("select value from logs order by value") == [("0.25",), ("0.5",), ("3",)]
    assert names(db)["loss"].count == 3


def test_killed_run_that_writes_again_soon_is_read_on(
    settings: Settings, db: Database, journal: Begin
) -> None:
    """Its machine had slept, or its lock was lost."""
    writer = journal()
    site = writer.site("loss")
    writer.log(site, 0.5)
    writer.lines(b"[1, 0, 0, 0.")
    assert ingest(settings, db).bad_lines == 1
    assert db.execute("select status from runs") == [("killed",)]
    assert ingest(settings, db) == IngestReport(), "it did not grow"

    writer.lines(b"25]\n")
    assert ingest(settings, db).records == 1
    assert db.execute("select status, closed from runs") == [("killed", True)]
    child = writer.child(9)
    child.log(child.site("loss"), 3)
    assert ingest(settings, db).records == 1
    writer.end()
    assert ingest(settings, db).runs == 1

    assert db.execute("select status from runs") == [("finished",)]
    assert db.execute("select value from logs order by value") == [("0.25",), ("0.5",), ("3",)]
    assert db.execute("select sum(bad_lines) from journals") == [(0,)]
    assert names(db)["loss"].count == 3
    assert (grown(settings, db), ingest(settings, db)) == ([], IngestReport())


def age(writer: JournalWriter, days: float) -> None:
    moment = time.time() - days * 86400
    os.utime(writer.path, (moment, moment))


# --- the cache ------------------------------------------------------------------------------------


def test_deleted_database_comes_back(tmp_path: Path) -> None:
    settings = Settings(root=tmp_path, projid="proj")
    for number in range(5):
        writer = JournalWriter(settings.runs_dir, f"20261118-190312-{number:06x}")
        writer.run()
        training(writer, epochs=number)
    with open_database(settings) as db:
        ingest(settings, db)
        before = everything(db)
    settings.sqlite_path.unlink()

    with open_database(settings) as db:
        ingest(settings, db)
        assert everything(db) == before
    assert len(before["runs"]) == 5


def test_several_processes_at_once(settings: Settings, journal: Begin) -> None:
    for number in range(20):
        training(journal(f"20261118-190312-{number:06x}"), epochs=5, steps=20)
    code = (
        "import sys, pathlib\n"
        "from flor.config import Settings; from flor.store.ingest import ingest\n"
        "from flor.store.database import open_database\n"
        "settings = Settings(pathlib.Path(sys.argv[1]), 'proj', sys.argv[2])\n"
        "print(ingest(settings, open_database(settings)).records)"
    )
    command = [sys.executable, "-c", code, str(settings.root), settings.database]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    records = [int(process.communicate()[0]) for process in processes]

    assert sum(records) == 20 * 106
    with open_database(settings) as db:
        assert db.execute("select count(*) from records") == [(20 * 106,)]
        assert names(db)["loss"].count == 20 * 100


def test_listing_closed_runs_is_cheap(tmp_path: Path) -> None:
    settings = Settings(root=tmp_path, projid="proj")
    for number in range(3000):
        JournalWriter(settings.runs_dir, f"20261118-190312-{number:06x}").end()
    with open_database(settings) as db:
        assert ingest(settings, db).runs == 3000
        start = time.perf_counter()
        assert ingest(settings, db) == IngestReport()
        assert time.perf_counter() - start < 0.05


def test_folder_that_is_no_run_yet(settings: Settings, db: Database) -> None:
    assert ingest(settings, db) == IngestReport()
    (settings.runs_dir / "20261118-190312-aaaaaa").mkdir(parents=True)
    (settings.runs_dir / "notes.txt").write_text("mine")

    assert ingest(settings, db) == IngestReport()
    assert known_runs(db) == set()


# --- nonsense -------------------------------------------------------------------------------------

LINES = [
    [1, 0, 0, 1.5],
    [1, 1, 2, 1.5],
    {"t": "site", "id": 1, "name": "a", "file": "f.py", "line": 1},
    {"t": "loop", "id": 1, "name": "epoch", "parent": 0, "iteration": 0, "len": None, "at": 1},
    {"t": "loop", "id": 2, "name": "step", "parent": 1, "iteration": 3, "len": None, "at": 1},
    {"t": "loop_end", "id": 1, "n": 4, "at": 2, "done": True},
    {"t": "value", "loop": 1, "iteration": 0, "value": 3},
    {"t": "times", "loop": 1, "first": 0, "n": 1, "sum": 0.1, "each": None},
    {"t": "version", "commit": "c", "tree": "t", "left_out": []},
    {"t": "data", "path": "p", "size_bytes": 1},
    {"t": "scope", "id": 1, "names": ["x"], "loop": 1, "iteration": 1, "at": 1},
    {"t": "scope_end", "id": 1, "at": 2},
    {"t": "note", "text": "x"},
    {"t": "child", "v": 1, "run_id": "r", "pid": 1, "loop": 0, "iteration": 0},
    {"t": "run", "run_id": "r", "projid": "p", "tstamp": "2026-11-18T19:03:12Z", "filename": "f"},
    {"t": "end", "status": "finished", "at": 3.0},
]
ODD = [None, True, -1, 2**31, 2**70, 10**400, 1e400, float("nan"), "", "\ud800", "\0", [], {}, [1]]


@st.composite
def nonsense(draw: st.DrawFn) -> bytes:
    """A journal whose lines are right but for some values and some bytes."""
    lines = []
    for line in draw(st.lists(st.sampled_from(LINES), max_size=12)):
        changed: Any = dict(line) if isinstance(line, dict) else list(line)
        if draw(st.booleans()):
            place = draw(st.sampled_from(list(changed) if isinstance(changed, dict) else [0, 1, 2]))
            changed[place] = draw(st.sampled_from(ODD))
        lines.append(json.dumps(changed).encode())
    return b"\n".join(lines) + draw(st.binary(max_size=20)) + b"\n"


@hypothesis_settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=nonsense(), later=nonsense())
def test_nonsense_never_raises(
    settings: Settings, db: Database, content: bytes, later: bytes
) -> None:
    run_id = f"20261118-190312-{random.randrange(2**64):016x}"
    writer = JournalWriter(settings.runs_dir, run_id)
    writer.lines(content)
    ingest(settings, db)
    writer.lines(later)
    ingest(settings, db, full=True)

    assert run_id in known_runs(db)
    db.execute("select * from logs where run_id = ?", (run_id,))


def test_garbage_is_a_run_that_was_killed(settings: Settings, db: Database) -> None:
    writer = JournalWriter(settings.runs_dir, "20261118-190312-aaaaaa")
    writer.lines(random.Random(7).randbytes(5000) + b"\n")

    report = ingest(settings, db)

    assert report.runs == 1
    assert report.bad_lines > 1
    assert db.execute("select status, tstamp, projid from runs") == [
        ("killed", "2026-11-18 19:03:12.000000", "proj")
    ]


def test_undefined_numbers_are_counted(settings: Settings, db: Database, journal: Begin) -> None:
    writer = journal()
    site = writer.site("a")
    writer.lines([site, 0, 0, 1], [9, 0, 0, 1], [site, 9, 0, 1], [site, 0, -1, 1], [site, 0])
    writer.lines([site, 0, 0, {}, "object"], [site, 0, 0, 1, "what"], [True, 0, 0, 1], [])
    writer.log(site, 2)

    report = ingest(settings, db)

    assert (report.records, report.bad_lines) == (2, 8)
    assert db.execute("select value from logs order by value") == [("1",), ("2",)]


def test_values_that_are_nested_too_deeply(
    settings: Settings, db: Database, journal: Begin
) -> None:
    writer = journal()
    deep = {level: b"[" * level + b"]" * level for level in (50, 200, 900, 20_000)}
    site = writer.site("h")
    for level in (50, 200, 900, 20_000):
        writer.lines(b"[%d, 0, 0, %s]\n" % (site, deep[level]))
    writer.lines(b'{"t": "env", "packages": {}, "devices": %s}\n' % deep[900])
    writer.lines(b'{"t": "version", "commit": "c", "tree": "t", "left_out": [%s]}\n' % deep[900])
    writer.end()

    assert ingest(settings, db) == IngestReport(runs=1, records=3, bad_lines=5)

    values = db.execute("select value from logs order by length(value)")
    assert [value.count("[") for (value,) in values] == [40, 40, 50]
    assert "nested 200 levels deep" in values[0][0]


def test_loops_inside_each_other_have_a_limit(
    settings: Settings, db: Database, journal: Begin
) -> None:
    writer = journal()
    site = writer.site("x")
    for depth in range(1, 5001):
        writer.loop(depth, f"l{depth % 7}", depth - 1, 0)
        writer.log(site, depth, depth, 0)
    writer.end()
    began = time.process_time()

    report = ingest(settings, db)

    assert (report.records, report.bad_lines) == (MAX_LOOPS, 2 * (5000 - MAX_LOOPS))
    assert max(len(path) for path in names(db)["x"].paths) == MAX_LOOPS
    assert len(dataframe(settings, db, ["x"])) == MAX_LOOPS
    assert time.process_time() - began < 20


def test_folder_with_a_strange_name_is_no_run(settings: Settings, db: Database) -> None:
    for name in (b"\xff\xfe", b"\x1b[31mred", b".hidden"):
        folder = settings.runs_dir / os.fsdecode(name)
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_bytes(b"{}\n")

    assert ingest(settings, db) == IngestReport()


# --- the branch -----------------------------------------------------------------------------------


def test_branch_gives_the_same_rows(settings: Settings, db: Database, journal: Begin) -> None:
    writer = journal()
    training(writer)
    payload = writer.gzipped()
    ingest(settings, db)
    before = everything(db)
    elsewhere = replace(settings, root=settings.root / "clone", database="")

    with open_database(elsewhere) as clone:
        assert ingest_branch(clone, [(writer.run_id, payload)]) == IngestReport(1, 9)
        assert ingest_branch(clone, [(writer.run_id, payload)]) == IngestReport()
        after = everything(clone)
        assert clone.execute("select origin from runs") == [("branch",)]

    if db.dialect == "sqlite":
        assert after == before
    assert ingest_branch(db, [(writer.run_id, payload)]) == IngestReport()


def test_branch_payload_with_children(settings: Settings, db: Database, journal: Begin) -> None:
    writer = journal()
    writer.log(writer.site("a"), 1)
    writer.end()
    children = b""
    for pid in (7, 8):
        child = writer.child(pid)
        child.log(child.site("b"), pid)
        children += child.gzipped()

    report = ingest_branch(db, [(writer.run_id, writer.gzipped() + children)])

    assert report == IngestReport(runs=1, records=3)
    assert db.execute("select num from records order by seq") == [(1,), (7,), (8,)]
    assert db.execute("select status from runs") == [("finished",)]


def test_damaged_payload_is_read_as_far_as_it_goes(
    settings: Settings, db: Database, journal: Begin
) -> None:
    writer = journal()
    site = writer.site("a")
    for number in range(2000):
        writer.log(site, random.random() + number)
    payload = writer.gzipped()

    report = ingest_branch(db, [(writer.run_id, payload[: len(payload) // 2])])

    assert 500 < report.records < 1900
    assert report.bad_lines >= 1
    assert db.execute("select status from runs") == [("killed",)]


def test_payload_of_nonsense_is_given_up(db: Database) -> None:
    report = ingest_branch(db, [("r1", gzip.compress(b"?\n" * 6_000_000))])

    assert report.runs == 1
    assert MAX_BAD_LINES < report.bad_lines < 6_000_000


def test_repository_is_asked_for_unknown_runs_only(
    settings: Settings, db: Database, journal: Begin
) -> None:
    local, remote = journal("20261118-190312-aaaaaa"), JournalWriter(settings.root, "r2")
    local.end()
    remote.run()
    remote.end()
    asked = []

    class Branch:
        def journals(self, known: Any = ()) -> list[tuple[str, bytes]]:
            asked.append(set(known))
            return [("r2", remote.gzipped())]

    assert ingest(settings, db, repository=Branch()).runs == 2
    assert asked == [{local.run_id}]
    assert known_runs(db) == {local.run_id, "r2"}
