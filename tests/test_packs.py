"""Columns of runs, from rows and from packs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from flor.config import Settings
from flor.errors import StoreError
from flor.model import StoredValue
from flor.store import blobs, columns
from flor.store.database import Database, SQLite, open_database
from flor.store.ingest import ingest
from flor.store.packs import Column, names, read_columns
from tests.conftest import JournalWriter
from tests.test_cells import JSON, same

Begin = Callable[..., JournalWriter]


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    return Settings(root=tmp_path, projid="proj", database=url)


@pytest.fixture
def db(settings: Settings) -> Iterator[Database]:
    with open_database(settings) as found:
        yield found


def run_pk(db: Database, writer: JournalWriter) -> int:
    return int(db.execute("select run_pk from runs where run_id = ?", (writer.run_id,))[0][0])


def read(db: Database, writer: JournalWriter, *wanted: str) -> dict[str, list[Column]]:
    """Columns as packs give them, which are the same as rows give."""
    key = run_pk(db, writer)
    packed = read_columns(db, [key], wanted or None)[key]
    assert db.execute("select count(*) from packs where run_pk = ? and part = ''", (key,))[0][0]
    db.execute("update runs set closed = ?, revision = revision + 1 where run_pk = ?", (False, key))
    from_rows = read_columns(db, [key], wanted or None)[key]
    db.execute("update runs set closed = ?, revision = revision - 1 where run_pk = ?", (True, key))
    assert_same(packed, from_rows)
    return packed


def assert_same(one: dict[str, list[Column]], other: dict[str, list[Column]]) -> None:
    assert one.keys() == other.keys()
    for name, several in one.items():
        assert len(several) == len(other[name])
        for a, b in zip(several, other[name], strict=True):
            assert (a.path, a.is_arg, len(a.labels)) == (b.path, b.is_arg, len(b.labels))
            assert a.dims.dtype == b.dims.dtype == np.int64
            assert a.dims.shape == (len(a.values), len(a.path))
            assert a.dims.tolist() == b.dims.tolist()
            assert a.values.dtype == b.values.dtype
            assert same(a.values.tolist(), b.values.tolist())
            for left, right in zip(a.labels, b.labels, strict=True):
                assert (left is None) == (right is None)
                assert left is None or same(left.tolist(), right.tolist())


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logged", "dtype"),
    [
        ([0.5, float("nan"), float("-inf"), -0.0, 1e308], "float64"),
        ([1, -5, 2**53 + 1, 2**63 - 1, -(2**63)], "int64"),
        ([3], "int64"),
        ([2**63], "object"),
        ([True, False], "bool"),
        ([True, 1, 1.0], "object"),
        (["a", "\ud800", "\0", "😀", ""], "object"),
        ([None], "object"),
        ([[1, [2]], {"a": None}, []], "object"),
    ],
)
def test_values_and_their_array(
    settings: Settings, db: Database, journal: Begin, logged: list[Any], dtype: str
) -> None:
    writer = journal()
    site = writer.site("x")
    for value in logged:
        writer.log(site, value)
    writer.end()
    ingest(settings, db)

    (column,) = read(db, writer)["x"]

    assert column.values.dtype == dtype
    assert same(column.values.tolist(), logged)
    assert (column.path, column.labels, column.dims.shape) == ((), (), (len(logged), 0))


@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), JSON), min_size=1, max_size=20))
def test_any_values_come_back(
    settings: Settings, db: Database, records: list[tuple[str, int, Any]]
) -> None:
    writer = JournalWriter(
        settings.runs_dir, f"20261118-190312-{random.Random().randrange(2**64):016x}"
    )
    writer.run()
    sites = {name: writer.site(name) for name in "ab"}
    writer.loop(1, "epoch")
    for name, iteration, value in records:
        writer.log(sites[name], value, *((1, iteration) if iteration else (0, 0)))
    writer.end()
    assert ingest(settings, db).bad_lines == 0

    found = read(db, writer)

    for name in {name for name, *_ in records}:
        for path in ((), ("epoch",)):
            logged = [(i, v) for n, i, v in records if n == name and bool(i) == bool(path)]
            here = [column for column in found[name] if column.path == path]
            assert len(here) == bool(logged)
            if logged:
                assert same(here[0].values.tolist(), [value for _, value in logged])
                assert here[0].dims.tolist() == [[i] if path else [] for i, _ in logged]


def test_tagged_values(settings: Settings, db: Database, journal: Begin) -> None:
    stored = StoredValue("npy", "ndarray", "ab" * 32, 9, {"shape": [3]})
    writer = journal()
    site = writer.site("x")
    writer.lines([site, 0, 0, stored.to_json(), "object"])
    writer.lines([site, 0, 0, "<repr>", "text"], [site, 0, 0, "2026-11-18T19:03:00", "datetime"])
    writer.lines([site, 0, 0, "text"])
    writer.end()
    ingest(settings, db)

    (column,) = read(db, writer)["x"]

    assert column.values.tolist() == [stored, "<repr>", datetime(2026, 11, 18, 19, 3), "text"]


@pytest.mark.parametrize("damage", ["byte", "cut", "empty", "other"])
@pytest.mark.parametrize("part", ["", "*", "=long"])
def test_damaged_pack_is_dropped(
    settings: Settings, db: Database, journal: Begin, part: str, damage: str
) -> None:
    """A database does not check its pages: wrong bytes must not become wrong numbers."""
    writer = journal()
    top, short, long = (writer.site(name) for name in ("top", "short", "long"))
    writer.log(top, 1.5)
    writer.loop(1, "epoch")
    writer.log(short, 2.5, 1, 0)
    for step in range(100):
        writer.log(long, step / 4, 1, step)
    writer.end()
    ingest(settings, db)
    key = run_pk(db, writer)
    before = read_columns(db, [key], None)[key]
    ((content,),) = db.execute("select content from packs where part = ?", (part,))
    ((other,),) = db.execute("select content from packs where part = ?", ("" if part else "*",))
    content = bytes(content)
    place = len(content) - 12  # in the values
    changed = {
        "byte": content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :],
        "cut": content[:-9],
        "empty": b"",
        "other": bytes(other)[:40] + content[40:],
    }[damage]
    db.execute("update packs set content = ? where part = ?", (changed, part))

    assert_same(read_columns(db, [key], None)[key], before)

    ((again,),) = db.execute("select content from packs where part = ?", (part,))
    assert bytes(again) == content, "packed again"


# --- contexts -------------------------------------------------------------------------------------


def nested(writer: JournalWriter, epochs: int, steps: int, labels: bool = False) -> None:
    loss, acc = writer.site("loss"), writer.site("acc")
    writer.log(writer.site("lr", arg=True, source="default"), 0.1)
    writer.loop(1, "epoch")
    for epoch in range(epochs):
        if labels:
            writer.lines({"t": "value", "loop": 1, "iteration": epoch, "value": f"e{epoch}"})
        writer.loop(epoch + 2, "step", 1, epoch)
        for step in range(steps):
            if labels and step % 2:
                writer.lines({"t": "value", "loop": epoch + 2, "iteration": step, "value": 0.5})
            writer.log(loss, epoch + step / 1000, epoch + 2, step)
        writer.loop_end(epoch + 2, steps)
        writer.log(acc, epoch, 1, epoch)
    writer.loop_end(1, epochs)
    writer.end()


@pytest.mark.parametrize(("epochs", "steps"), [(2, 3), (3, 2000)])
def test_dims_are_the_iterations_of_each_level(
    settings: Settings, db: Database, journal: Begin, epochs: int, steps: int
) -> None:
    writer = journal()
    nested(writer, epochs, steps)
    ingest(settings, db)

    found = read(db, writer)

    (loss,), (acc,), (lr,) = found["loss"], found["acc"], found["lr"]
    every = [[epoch, step] for epoch in range(epochs) for step in range(steps)]
    assert loss.path == ("epoch", "step")
    assert loss.dims.tolist() == every
    assert loss.values.tolist() == [epoch + step / 1000 for epoch, step in every]
    assert loss.labels == (None, None)
    assert (acc.path, acc.dims.tolist()) == (("epoch",), [[epoch] for epoch in range(epochs)])
    assert (lr.is_arg, loss.is_arg) == (True, False)


@pytest.mark.parametrize(("epochs", "steps"), [(2, 4), (3, 2000)])
def test_labels_are_what_the_loops_yielded(
    settings: Settings, db: Database, journal: Begin, epochs: int, steps: int
) -> None:
    writer = journal()
    nested(writer, epochs, steps, labels=True)
    ingest(settings, db)

    (loss,) = read(db, writer, "loss")["loss"]

    outer, inner = loss.labels
    assert outer is not None
    assert inner is not None
    assert outer.tolist() == [f"e{epoch}" for epoch in range(epochs) for _ in range(steps)]
    assert inner.tolist() == [0.5 if step % 2 else step for step in range(steps)] * epochs


def test_two_files_log_one_name(settings: Settings, db: Database, journal: Begin) -> None:
    writer = journal()
    one, two = writer.site("x", "a.py"), writer.site("x", "b.py")
    for value in range(6):
        writer.log(two if value % 2 else one, value)
    writer.end()
    ingest(settings, db)

    (column,) = read(db, writer)["x"]

    assert column.values.tolist() == [0, 1, 2, 3, 4, 5]


def test_one_name_in_sibling_loops(settings: Settings, db: Database, journal: Begin) -> None:
    writer = journal()
    site = writer.site("x")
    for number, name in enumerate(["train", "val", "train"], 1):
        writer.loop(number, name)
        writer.log(site, number, number, number)
    writer.log(site, 9)
    writer.end()
    ingest(settings, db)

    found = [(c.path, c.dims.tolist(), c.values.tolist()) for c in read(db, writer)["x"]]

    assert found == [
        ((), [[]], [9]),
        (("train",), [[1], [3]], [1, 3]),
        (("val",), [[2]], [2]),
    ]


def test_children_come_after_the_main_process(
    settings: Settings, db: Database, journal: Begin
) -> None:
    writer = journal()
    child = writer.child(5)
    site = child.site("x")
    child.log(site, 10)
    child.log(site, 11)
    writer.log(writer.site("x"), 1)
    writer.end()
    ingest(settings, db)

    assert read(db, writer)["x"][0].values.tolist() == [1, 10, 11]


# --- packs ----------------------------------------------------------------------------------------


def test_only_wanted_names_are_read(settings: Settings, db: Database, journal: Begin) -> None:
    writer = journal()
    nested(writer, 2, 100)
    ingest(settings, db)
    key = run_pk(db, writer)

    assert read_columns(db, [key], ["lr", "loss", "unknown"])[key].keys() == {"lr", "loss"}
    assert read_columns(db, [key], [])[key] == {}
    assert read_columns(db, [], None) == {}
    assert read_columns(db, [key, 99], ["lr"])[99] == {}


def test_packs_of_an_older_revision_or_format_are_not_read(
    settings: Settings, db: Database, journal: Begin
) -> None:
    writer = journal()
    writer.log(writer.site("x"), 1)
    writer.end()
    ingest(settings, db)
    key = run_pk(db, writer)
    for change in ("update runs set revision = revision + 1", "update packs set format = -1"):
        db.execute("update records set num = num + 1")
        assert read_columns(db, [key], None)[key]["x"][0].values[0] in (1, 2)
        db.execute(change)
        expected = db.execute("select num from records")[0][0]
        assert read_columns(db, [key], None)[key]["x"][0].values.tolist() == [expected]
        assert db.execute("select format from packs") == [(blobs.FORMAT,)], "packed again"


def test_live_run_is_read_from_rows(settings: Settings, db: Database, journal: Begin) -> None:
    writer = journal()
    site = writer.site("x")
    writer.log(site, 1)
    ingest(settings, db)
    db.execute("update runs set closed = ?, status = 'running'", (False,))
    db.execute("delete from packs")

    assert read_columns(db, [run_pk(db, writer)], ["x"])[run_pk(db, writer)]["x"][0].values == [1]
    assert db.execute("select count(*) from packs") == [(0,)]


def test_replayed_records_come_and_go(settings: Settings, db: Database, journal: Begin) -> None:
    """Rows of another origin join a run's columns, and deleting by origin undoes that."""
    writer = journal()
    writer.log(writer.site("x"), 1.0)
    writer.end()
    ingest(settings, db)
    key = run_pk(db, writer)
    with db.transaction():
        db.execute(
            "insert into records (run_pk, site_pk, origin, seq, loop_pk, iteration, kind, num) "
            "select run_pk, site_pk, 7, seq + 1, loop_pk, iteration, kind, 2.0 from records"
        )
        db.execute("update runs set revision = revision + 1")
    assert read_columns(db, [key], None)[key]["x"][0].values.tolist() == [1.0, 2.0]

    with db.transaction():
        db.execute("delete from records where origin = 7")
        db.execute("update runs set revision = revision + 1")
    assert read_columns(db, [key], None)[key]["x"][0].values.tolist() == [1.0]


def test_reading_goes_on_where_packs_cannot_be_written(
    tmp_path: Path, journal: Begin, settings: Settings
) -> None:
    class ReadOnly(SQLite):
        def executemany(self, sql: str, rows: Any) -> None:
            raise StoreError("read-only")

    if settings.database:
        pytest.skip("the same for both")
    writer = journal()
    writer.log(writer.site("x"), 1)
    writer.end()
    with open_database(settings) as db:
        ingest(settings, db)
        db.execute("delete from packs")
    with ReadOnly(settings.sqlite_path) as db:
        assert read_columns(db, [1], None)[1]["x"][0].values.tolist() == [1]


@given(st.integers(0, 70_000), st.integers(1, 9))
def test_dims_of_any_size_come_back(highest: int, count: int) -> None:
    dims = np.linspace(0, highest, count).astype(np.int64).reshape(-1, 1)
    column = columns.make(("a",), dims, (None,), np.arange(count), False)
    found: dict[str, list[Column]] = {}

    blobs.decode(blobs.encode([("x", column)]), None, found)

    assert_same(found, {"x": [column]})


# --- names ----------------------------------------------------------------------------------------


def test_names(settings: Settings, db: Database, journal: Begin) -> None:
    for number in range(2):
        nested(journal(f"20261118-190312-00000{number}"), 2, 3)
    ingest(settings, db)

    found = names(db)

    assert {name: (info.paths, info.is_arg, info.count) for name, info in found.items()} == {
        "acc": ((("epoch",),), False, 4),
        "loss": ((("epoch", "step"),), False, 12),
        "lr": (((),), True, 2),
    }


def test_names_of_other_projects_are_not_ours(
    settings: Settings, db: Database, journal: Begin
) -> None:
    nested(journal(projid="other"), 1, 1)
    ingest(settings, db)

    assert bool(names(db)) == (db.dialect == "sqlite")
    with open_database(replace(settings, projid="other")) as other:
        assert json.dumps(sorted(names(other))) == '["acc", "loss", "lr"]'
