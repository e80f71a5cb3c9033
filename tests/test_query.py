"""Questions to a project whose journals were really ingested."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import duckdb
import numpy as np
import pandas as pd
import pytest

from flor.config import Settings
from flor.errors import QueryError
from flor.store import query
from flor.store.database import Database, open_database
from flor.store.ingest import ingest
from flor.store.query import FlorWarning

FIRST, SECOND, THIRD = (f"20261118-19{minute}00-aaaaaa" for minute in ("00", "01", "02"))
DIGEST = "ab" * 32


def write_journals(journal) -> None:
    """Three runs: one complete, one that failed with other code, one that only began."""
    # lr=0.1   tags=["a"]   note="it's"                                     (first)
    # epoch 0 ("warm")   step 0 loss=1.5   step 1 loss=1.2   acc=0.8
    # epoch 1            step 0 loss=0.9                     acc=0.9
    one = journal(FIRST, tstamp="2026-11-18T19:00:00.000000Z")
    lr, tags, note = one.site("lr", arg=True, source="kwargs"), one.site("tags"), one.site("note")
    loss, acc, image = one.site("loss"), one.site("acc"), one.site("image", file="plots.py")
    one.log(lr, 0.1)
    one.log(tags, ["a"])
    one.log(note, "it's")
    one.loop(1, "epoch")
    one.lines({"t": "value", "loop": 1, "iteration": 0, "value": "warm"})
    one.loop(2, "step", 1, 0)
    one.log(loss, 1.5, 2, 0)
    one.log(loss, 1.2, 2, 1)
    one.loop_end(2, 2)
    one.log(acc, 0.8, 1, 0)
    one.loop(3, "step", 1, 1)
    one.log(loss, 0.9, 3, 0)
    one.loop_end(3, 1)
    one.log(acc, 0.9, 1, 1)
    one.loop_end(1, 2)
    stored = {"media": "npy", "type": "ndarray", "digest": DIGEST, "size_bytes": 96}
    one.log(image, stored | {"preview": {"shape": [2, 3], "dtype": "float64"}}, 0, 0, "object")
    one.lines({"t": "data", **{"path": "train.csv", "size_bytes": 9, "mtime_ns": 1}})
    one.end()
    # lr=0.01   tags=3   epoch 0 acc=nan                                    (second)
    two = journal(SECOND, tstamp="2026-11-18T19:01:00.000000Z", host="gpu", argv=["train.py", "-v"])
    version = {"commit": "c0ffee", "tree": "beef", "left_out": [], "partial": False}
    user = {"user_branch": "tuning", "user_commit": "c1", "user_dirty": True}
    two.lines({"t": "version", **version, **user})
    lr, tags, acc = two.site("lr", arg=True, source="default"), two.site("tags"), two.site("acc")
    two.log(lr, 0.01)
    two.log(tags, 3)
    two.loop(1, "epoch")
    two.log(acc, float("nan"), 1, 0)
    two.end("failed", at=2.0, error="ValueError: no")
    journal(THIRD, tstamp="2026-11-18T19:02:00.000000Z", filename="other.py")


@pytest.fixture(params=["sqlite", "postgres"])
def project(request, settings: Settings, journal) -> Iterator[tuple[Settings, Database]]:
    """The three runs, in either database."""
    write_journals(journal)
    if request.param == "postgres":
        settings = replace(settings, database=request.getfixturevalue("postgres_url"))
    with open_database(settings) as db:
        ingest(settings, db)
        yield settings, db


@pytest.fixture
def light(settings: Settings, journal) -> Iterator[tuple[Settings, Database]]:
    """The same in SQLite, for what does not depend on the database."""
    write_journals(journal)
    with open_database(settings) as db:
        ingest(settings, db)
        yield settings, db


def plain(cell: object) -> object:
    if pd.api.types.is_scalar(cell) and pd.isna(cell):
        return None
    return cell.item() if isinstance(cell, np.generic) else cell


def rows(frame: pd.DataFrame, *names: str) -> list[tuple]:
    cells = frame[list(names)].itertuples(index=False, name=None)
    return [tuple(map(plain, row)) for row in cells]


def test_a_table_of_names(project):
    frame = query.dataframe(*project, ["lr", "acc", "loss"])
    assert [*frame.columns] == [
        *("projid", "tstamp", "filename", "run_id"),
        *("epoch", "epoch_value", "step", "lr", "acc", "loss"),
    ]
    assert rows(frame, "run_id", "epoch", "step", "lr", "acc", "loss") == [
        (FIRST, 0, 0, 0.1, 0.8, 1.5),
        (FIRST, 0, 1, 0.1, 0.8, 1.2),
        (FIRST, 1, 0, 0.1, 0.9, 0.9),
        (SECOND, 0, None, 0.01, None, None),
        (THIRD, None, None, None, None, None),
    ]
    assert frame["epoch_value"].tolist()[:3] == ["warm", "warm", 1]


def test_times_are_local_and_naive(project, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        local = datetime(2026, 11, 19, 4, 0)
        assert query.dataframe(*project, ["lr"])["tstamp"][0] == local
        for relation in ("runs", "logs", "frame"):
            found = query.sql(*project, f"select min(tstamp) as t from {relation}")["t"][0]
            assert found == local, relation
    finally:
        monkeypatch.undo()
        time.tzset()


def test_no_names_is_one_row_per_run(project):
    frame = query.dataframe(*project)
    assert [*frame.columns] == [
        *("projid", "tstamp", "filename", "run_id", "status", "seconds"),
        *("lr", "tags", "note", "image"),
    ]
    assert rows(frame, "status", "seconds", "lr", "note", "tags") == [
        ("finished", 10.0, 0.1, "it's", ["a"]),
        ("failed", 2.0, 0.01, None, 3),
        ("killed", frame["seconds"][2], None, None, None),
    ]


def test_no_runs_at_all(settings):
    with open_database(settings) as db:
        assert len(query.dataframe(settings, db)) == 0
        with pytest.warns(FlorWarning, match="acc"):
            assert [*query.dataframe(settings, db, ["acc"], "acc > 1").columns][-1] == "acc"
        for relation in ("runs", "versions", "args", "logs", "loops", "data", "frame"):
            assert len(query.sql(settings, db, f"select * from {relation}")) == 0


@pytest.mark.parametrize(
    ("where", "epochs"),
    [
        ("acc > 0.85", [1]),
        ("loss < 1.3 and step = 1", [0]),
        ("epoch_value = 'warm'", [0, 0]),
        ("ACC > 0.85", [1]),
        ('"acc" > 0.85 -- and false', [1]),
        ("/* ) */ acc > 0.85", [1]),
        ("acc > (select avg(acc) from frame)", [1]),
        ("lr = 0.1", [0, 0, 1]),
        ("lr = 0.1 and acc < 0.85", [0, 0]),
        ("note = 'it''s'", [0, 0, 1]),
        ("note = $$it's$$ or acc is null", [0, 0, 1, 0, None]),
        ("status = 'failed'", [0]),
        ("status = 'failed' or loss > 1.4", [0, 0]),
        ("host = 'gpu' and user_name = 'ada'", [0]),
        ("branch = 'tuning'", [0]),
        ("commit_id = 'c0ffee'", [0]),
        ("seconds between 1 and 3", [0]),
        ("tstamp < timestamp '2000-01-01'", []),
        ("filename = 'other.py'", [None]),
        (f"run_id = '{FIRST}' and epoch = 1", [1]),
        ("tags like '%a%'", [0, 0, 1]),
        ("  ", [0, 0, 1, 0, None]),
    ],
)
def test_where(light, where, epochs):
    """Conditions over the table, over runs, and over what was not asked for."""
    frame = query.dataframe(*light, ["acc", "loss"], where)
    assert [epoch for (epoch,) in rows(frame, "epoch")] == epochs
    assert [name for name in shown(frame) if name != "epoch_value"] == [
        *("epoch", "step", "acc", "loss")
    ]
    assert isinstance(frame.index, pd.RangeIndex)


def shown(frame: pd.DataFrame) -> list[str]:
    return [
        name for name in frame.columns if name not in ("projid", "tstamp", "filename", "run_id")
    ]


def test_where_in_postgres_too(project):
    assert len(query.dataframe(*project, ["acc"], "lr < 0.05 and status = 'failed'")) == 1
    assert len(query.dataframe(*project, ["acc"], "acc > 0.5 and branch is null")) == 2


def test_where_keeps_types_and_objects(light):
    """The rows are picked, not converted: a list stays that list, a null int stays an int."""
    frame = query.dataframe(*light, ["tags", "step", "loss"], "tags is not null and epoch is null")
    assert frame["tags"].tolist() == [3]
    whole = query.dataframe(*light, ["tags"], "tags like '[%'")
    assert whole["tags"].tolist() == [["a"]]
    steps = query.dataframe(*light, ["acc", "loss"], "acc > 0")
    assert str(steps["step"].dtype) == "Int64"
    picked = query.dataframe(*light, ["image"], "image like '<ndarray 2x3%'")
    assert picked["image"][0].digest == DIGEST


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            "acuracy > 0.5",
            r"where = 'acuracy > 0.5'.*acuracy.*did you mean 'acc'.*there are: .*acc",
        ),
        ("acc > 0.5; drop table frame", "not one SQL condition"),
        ("acc > 0.5) union select 1 --", "not one SQL condition"),
        ("acc > 0.5) or (true", "not one SQL condition"),
        ("acc > 'high", "quote ' is not closed"),
        ("acc > 0.5 /*", "comment"),
        ("acc >", "syntax error"),
        ("true order by 1", "syntax error"),
        ("max(acc) > 1", "WHERE clause cannot contain aggregates"),
        ("cast(note as int) > 1", "Could not convert"),
        ("acc > ?", "parameter"),
        ("(select count(*) from read_csv('/etc/passwd')) > 0", "disabled by configuration"),
        ("nosuch(acc)", "nosuch does not exist"),
    ],
)
def test_where_that_cannot_run(light, where, message):
    with pytest.raises(QueryError, match=message) as caught:
        query.dataframe(*light, ["acc"], where)
    assert "LINE 1" not in str(caught.value)
    assert "__row__" not in str(caught.value)


def test_where_over_a_name_of_inner_loops(light):
    """It has no one value for a row of the table; asking for it as well gives it one."""
    with pytest.raises(QueryError, match="'loss' was logged inside loops; name it"):
        query.dataframe(*light, ["acc"], "loss < 1")


def test_an_unknown_name_warns_and_is_null(light):
    with pytest.warns(FlorWarning, match="nothing logged is called 'los'; did you mean 'loss'"):
        frame = query.dataframe(*light, ["acc", "los"])
    assert str(frame["los"].dtype) == "float64"
    assert frame["los"].isna().all()
    with pytest.warns(FlorWarning, match="called 'zzzzzz'; `flor.dataframe"):
        query.dataframe(*light, ["zzzzzz"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        query.dataframe(*light, ["epoch", "acc", "run_id"])


@pytest.fixture
def cased(settings, journal) -> Iterator[tuple[Settings, Database]]:
    """Names that SQL does not tell apart: Loss and loss, a logged Status, a logged Epoch."""
    one = journal()
    one.log(one.site("Loss"), 1)
    one.log(one.site("loss"), 14)
    one.log(one.site("Status"), "mine")
    one.loop(1, "epoch")
    one.log(one.site("Epoch"), 7, 1, 0)
    one.log(one.site("acc"), 0.5, 1, 0)
    one.end()
    with open_database(settings) as db:
        ingest(settings, db)
        yield settings, db


def test_names_that_differ_in_case_only(cased):
    assert rows(query.dataframe(*cased, ["Loss", "loss"]), "Loss", "loss") == [(1, 14)]
    assert rows(query.dataframe(*cased, ["Loss", "loss"], "seconds > 0"), "Loss", "loss") == [
        (1, 14)
    ]
    assert len(query.dataframe(*cased, ["loss"], "loss = 14")) == 1
    assert len(query.dataframe(*cased, ["Loss"], "LOSS = 1")) == 1
    assert len(query.dataframe(*cased, ["acc"], "loss = 14 and acc > 0")) == 1
    assert len(query.dataframe(*cased, ["acc"], "Loss = 1")) == 1
    assert len(query.dataframe(*cased, ["acc"], "status = 'finished'")) == 1
    assert len(query.dataframe(*cased, ["acc"], "Status = 'mine'")) == 1
    assert rows(query.sql(*cased, "select loss from frame"), "loss") == [(14,)]
    assert rows(query.sql(*cased, "select Loss from frame"), "Loss") == [(1,)]
    assert rows(query.sql(*cased, "select epoch, acc from frame"), "epoch") == [(0,)]
    found = query.sql(*cased, "select * from frame")
    assert {"Loss", "loss_2"} <= {*found.columns}
    found = query.sql(*cased, "select value from logs where value_name = 'loss'")
    assert rows(found, "value") == [("14",)]


@pytest.mark.parametrize(
    ("names", "where"),
    [
        (["Loss", "loss"], "loss = 14"),
        (["Loss", "loss"], "Loss = 1"),
        (["Loss"], "loss = 14"),
        (["acc"], "LOSS = 14"),
        (["acc"], "Loss = 1 and loss = 14"),
        (["acc"], "STATUS = 'finished'"),
        (["Status"], "status = 'finished'"),
        (["acc", "Epoch"], "epoch = 0"),
        ([], "loss = 14"),
    ],
)
def test_where_that_leaves_open_which_column_is_meant(cased, names, where):
    """A wrong number must never be shown."""
    with pytest.raises(QueryError, match=r"does not tell the columns .* and .* apart; ask for one"):
        query.dataframe(*cased, names, where)


@pytest.mark.parametrize(
    "text",
    [
        "select Loss, loss from frame",
        "select LOSS from frame",
        'select "LOSS" from frame',
        "select Epoch from frame",
        "select epoch, Epoch from frame",
        "select status, Status from frame",
    ],
)
def test_sql_that_leaves_open_which_column_is_meant(cased, text):
    with pytest.raises(QueryError, match=r"does not tell the columns .* apart; mention one"):
        query.sql(*cased, text)


@pytest.mark.parametrize("name", ["a\0b", "half \ud800"])
def test_names_that_no_database_takes(settings, journal, name):
    one = journal()
    one.log(one.site(name), 5)
    one.log(one.site("text"), "x\0")
    one.end()
    with open_database(settings) as db:
        ingest(settings, db)
        frame = query.dataframe(settings, db, [name, "text"], f"\"{name}\" = 5 and text = 'x\0'")
        assert rows(frame, name, "text") == [(5, "x\0")]
        assert query.sql(settings, db, f'select "{name}" as n from frame')["n"].tolist() == [5]
        with pytest.warns(FlorWarning, match="nothing logged"):
            assert [*query.dataframe(settings, db, ["c\0"]).columns][-1] == "c\0"


def test_only_a_loops_name_gives_its_iterations(settings, journal):
    # epoch 0 ("warm")   step 0, 1
    # epoch 1            step 0     lr     no loop in the second run
    one = journal(FIRST)
    one.log(one.site("lr"), 0.1)
    one.loop(1, "epoch")
    one.lines({"t": "value", "loop": 1, "iteration": 0, "value": "warm"})
    one.loop(2, "step", 1, 0)
    one.loop_end(2, 2)
    one.loop(3, "step", 1, 1)
    one.loop_end(3, 1)
    one.loop_end(1, 2)
    one.loop(4, "epoch")
    one.lines({"t": "value", "loop": 4, "iteration": 0, "value": "warm"})
    one.loop_end(4, 2)
    one.end()
    journal(SECOND, tstamp="2026-11-18T19:04:00.000000Z").end()
    with open_database(settings) as db:
        ingest(settings, db)
        frame = query.dataframe(settings, db, ["epoch"])
        assert rows(frame, "epoch", "epoch_value") == [(0, "warm"), (1, 1), (None, None)]
        assert [*frame.columns][4:] == ["epoch", "epoch_value"]
        frame = query.dataframe(settings, db, ["epoch", "step", "lr"], "lr > 0 and epoch >= 0")
        assert rows(frame, "epoch", "step", "lr") == [(0, 0, 0.1), (0, 1, 0.1), (1, 0, 0.1)]
        assert rows(query.dataframe(settings, db, ["step"], "step = 1"), "epoch", "step") == [
            (0, 1)
        ]
        with pytest.warns(FlorWarning, match="nothing logged is called 'epok'"):
            query.dataframe(settings, db, ["epok"])


def test_a_loop_beside_what_was_logged_in_it_adds_no_rows(light):
    frame = query.dataframe(*light, ["epoch", "loss"])
    assert rows(frame, "epoch", "loss") == [
        *((0, 1.5), (0, 1.2), (1, 0.9)),
        *((None, None), (None, None)),
    ]


def test_iterations_beyond_belief(settings, journal):
    one = journal()
    one.loop(1, "epoch")
    one.loop_end(1, 2**31 - 2)
    one.end()
    with open_database(settings) as db:
        ingest(settings, db)
        with pytest.raises(QueryError, match="2,147,483,646 iterations"):
            query.dataframe(settings, db, ["epoch"])
        with pytest.raises(QueryError, match="2,147,483,646 iterations"):
            query.sql(settings, db, "select count(*) from loops")


def test_strings_that_utf8_does_not_know(settings, journal):
    one = journal()
    one.log(one.site("text"), "half \ud800 \x00")
    one.end()
    with open_database(settings) as db:
        ingest(settings, db)
        frame = query.dataframe(settings, db, ["text"], "text like 'half%'")
        assert frame["text"].tolist() == ["half \ud800 \x00"]
        assert len(query.sql(settings, db, "select text from frame")) == 1


# --- sql -----------------------------------------------------------------------------------------


def test_the_frame_is_what_the_query_mentions(project):
    assert rows(
        query.sql(*project, "select lr, max(acc) as best from frame group by lr order by lr"),
        *("lr", "best"),
    ) == [(0.01, None), (0.1, 0.9), (None, None)]
    assert [*query.sql(*project, "select * from frame")["run_id"]] == [FIRST, SECOND, THIRD]
    found = query.sql(*project, 'select epoch, step, f."loss" from frame f where loss < 1.3')
    assert rows(found, "epoch", "step", "loss") == [(0, 1, 1.2), (1, 0, 0.9)]
    assert rows(
        query.sql(*project, "select host, acc from frame where status = 'failed'"), "host", "acc"
    ) == [("gpu", None)]


def test_a_mention_in_a_string_or_comment_is_none(light):
    found = query.sql(*light, "select run_id, 'loss' as acc from frame -- loss, acc")
    assert len(found) == 3


def test_a_column_of_another_relation_is_not_of_the_frame(light):
    found = query.sql(
        *light, "select runs.host, frame.lr from frame join runs using (run_id) order by lr limit 1"
    )
    assert rows(found, "host", "lr") == [("gpu", 0.01)]


def test_logs_have_flordbs_columns(project):
    found = query.sql(*project, "select * from logs order by tstamp, value_name, ctx_id, value")
    assert [*found.columns] == [
        *("projid", "tstamp", "filename", "ctx_id"),
        *("value_name", "value", "value_type", "run_id"),
    ]
    acc = found[found.value_name == "acc"]
    assert acc["value"].tolist() == ["0.8", "0.9", "nan"]
    lr = found[found.value_name == "lr"]
    assert lr["ctx_id"].isna().all()
    assert lr["value_type"].tolist() == [3, 3]
    assert found[found.value_name == "tags"]["value"].tolist() == ['["a"]', "3"]
    assert found[found.value_name == "image"]["filename"].tolist() == ["plots.py"]


def test_logs_are_the_databases_own_view(project):
    _, db = project
    ours = query.sql(*project, "select value_name, value, value_type, ctx_id, run_id from logs")
    theirs = db.execute("select value_name, value, value_type, ctx_id, run_id from logs")
    assert sorted(map(repr, rows(ours, *ours.columns))) == sorted(map(repr, theirs))


def test_loops_are_the_databases_own_view(project):
    _, db = project
    ours = query.sql(*project, "select * from loops order by ctx_id")
    names = (
        "ctx_id, parent_ctx_id, loop_name, loop_entries, loop_iteration, loop_value, projid, run_id"
    )
    assert ", ".join(ours.columns) == names
    assert rows(ours, *ours.columns) == db.execute(f"select {names} from loops order by ctx_id")


def test_logs_join_loops(light):
    found = query.sql(
        *light,
        "select l.value, p.loop_name, i.loop_iteration from logs l "
        "join loops i on i.ctx_id = l.ctx_id join loops p on p.ctx_id = i.parent_ctx_id "
        "where l.value_name = 'loss' order by l.value",
    )
    assert rows(found, *found.columns) == [
        ("0.9", "epoch", 0),
        ("1.2", "epoch", 1),
        ("1.5", "epoch", 0),
    ]


def test_only_the_columns_of_logs_that_are_mentioned_are_fetched(light):
    found = query.sql(*light, "select value_name, count(*) as n from logs group by all order by 1")
    assert rows(found, "value_name", "n") == [
        *(("acc", 3), ("image", 1), ("loss", 3), ("lr", 2), ("note", 1), ("tags", 2)),
    ]
    assert query.sql(*light, "select count(*) as n from logs")["n"][0] == 12


def test_the_other_relations(project):
    runs = query.sql(*project, "select * from runs order by tstamp")
    assert runs["status"].tolist() == ["finished", "failed", "killed"]
    assert rows(runs, "branch", "commit_id", "host", "exit_code")[1][:3] == (
        "tuning",
        "c0ffee",
        "gpu",
    )
    versions = query.sql(*project, "select * from versions")
    assert rows(versions, "commit_id", "user_branch", "user_dirty") == [("c0ffee", "tuning", True)]
    args = query.sql(*project, "select run_id, name, value, source from args order by value desc")
    assert rows(args, *args.columns) == [
        (FIRST, "lr", "0.1", "kwargs"),
        (SECOND, "lr", "0.01", "default"),
    ]
    data = query.sql(*project, "select * from data")
    assert rows(data, "run_id", "path", "size_bytes", "digest") == [(FIRST, "train.csv", 9, None)]


def test_results_are_typed(light):
    found = query.sql(
        *light,
        "select count(*) as n, sum(step) as total, max(acc) as best, min(note) as note from "
        "(select step, acc, note, loss from frame)",
    )
    assert [str(dtype) for dtype in found.dtypes][:3] == ["int64", "int64", "float64"]
    assert isinstance(found["note"][0], str)
    assert found["total"][0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "copy (select 1) to 'out.csv'",
        "attach 'other.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "pragma enable_profiling",
        "create table t (i int)",
        "insert into runs values (1)",
        "drop view frame",
        "call pragma_version()",
        "select 1; select 2",
        "export database 'out'",
        "",
        "-- nothing",
        "select 'a",
    ],
)
def test_only_one_select(light, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(QueryError):
        query.sql(*light, text)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from read_blob('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/etc/*')",
        "select * from sniff_csv('/etc/passwd')",
        "select * from read_csv('https://example.com/a.csv')",
        "select * from read_parquet('s3://bucket/a.parquet')",
        "select * from sqlite_scan('.flor/flor.db', 'runs')",
        "select * from postgres_scan('', 'public', 'runs')",
        "select * from secret",
        "select getenv('HOME')",
        "explain analyze copy (select 1) to '/tmp/flor-must-not-exist.csv'",
    ],
)
def test_nothing_outside_is_reached(light, text):
    secret = pd.DataFrame({"key": [1]})
    assert len(secret)
    with pytest.raises(QueryError):
        query.sql(*light, text)
    assert not os.path.exists("/tmp/flor-must-not-exist.csv")


def test_queries_change_nothing(light):
    _, db = light
    before = db.execute("select * from runs")
    query.sql(*light, "explain analyze select * from runs")
    with pytest.raises(QueryError):
        query.sql(*light, "update runs set status = 'finished'")
    assert db.execute("select * from runs") == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select acuracy from frame", "acuracy.*not found.*did you mean 'acc'"),
        ("select lr from frme", "frme does not exist"),
        ("select lr from", "syntax error"),
        ("select run_idd from runs", "did you mean 'run_id'"),
    ],
)
def test_a_query_that_cannot_run_says_why(light, text, message):
    with pytest.raises(QueryError, match=message):
        query.sql(*light, text)


def test_explain_and_describe(light):
    assert len(query.sql(*light, "explain select lr from frame")) > 0
    assert "lr" in query.sql(*light, "describe frame")["column_name"].tolist()


def test_ctrl_c_stops_a_query(light):
    endless = (
        "select count(*) from range(10000000) a, range(10000000) b where a.range * b.range % 7 = 3"
    )
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        query.sql(*light, endless)
    assert time.perf_counter() - began < 20
    assert query.sql(*light, "select 1 as one")["one"][0] == 1


def test_the_users_own_duckdb_is_left_alone(light):
    """Locking our settings does not lock those of connections that the user has."""
    query.sql(*light, "select 1")
    assert duckdb.sql("select 1 as one").fetchall() == [(1,)]
    duckdb.sql("set threads = 2")


def test_projects_that_share_a_database(settings, journal, postgres_url):
    """Each sees its own runs only."""
    write_journals(journal)
    settings = replace(settings, database=postgres_url)
    with open_database(settings) as db:
        ingest(settings, db)
    other = replace(settings, projid="another")
    with open_database(other) as db:
        assert len(query.dataframe(other, db)) == 0
        for relation in ("runs", "versions", "args", "logs", "loops", "data", "frame"):
            assert len(query.sql(other, db, f"select * from {relation}")) == 0, relation
