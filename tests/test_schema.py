"""The tables and their versions."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from flor.config import Settings
from flor.errors import SchemaTooNew, StoreError
from flor.store import schema
from flor.store.database import Database, PostgreSQL, SQLite, open_database

NEXT = schema.SCHEMA_VERSION + 1
RELATIONS = {
    "logs": "projid tstamp filename ctx_id value_name value value_type run_id",
    "loops": "ctx_id parent_ctx_id loop_name loop_entries loop_iteration loop_value projid run_id",
    "args": "run_id name value source projid",
}


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database without tables."""
    if request.param == "sqlite":
        found: Database = SQLite(None)
    else:
        found = PostgreSQL(request.getfixturevalue("postgres_url"), "proj")
    with found:
        yield found


def version(db: Database) -> str:
    return str(db.execute("select value from meta where key = 'schema'")[0][0])


def test_prepare_twice(db: Database) -> None:
    schema.prepare(db)
    before = sorted(db.relations())
    schema.prepare(db)

    assert version(db) == str(schema.SCHEMA_VERSION)
    assert sorted(db.relations()) == before


def test_views_have_the_columns_of_flordb(db: Database) -> None:
    schema.prepare(db)

    for view, columns in RELATIONS.items():
        assert db.execute(f"select {columns.replace(' ', ', ')} from {view}") == []


def test_newer_database_names_both_versions(db: Database) -> None:
    schema.prepare(db)
    db.execute("update meta set value = '99'")

    with pytest.raises(SchemaTooNew, match=rf"{re.escape(db.place)}.*99.*{schema.SCHEMA_VERSION}"):
        schema.prepare(db)


def test_migrations_run_in_order(db: Database) -> None:
    schema.prepare(db)
    db.execute("insert into counters (name, next) values ('kept', 5)")
    steps = {
        NEXT: "create table extra (id {int} not null);\ncreate view seen as select id from extra;\n",
        NEXT + 1: "alter table extra add column note text;\n",
    }

    schema.prepare(db, version=NEXT + 1, migrations=steps)

    assert version(db) == str(NEXT + 1)
    assert db.execute("select id, note from extra") == []
    assert db.execute("select next from counters where name = 'kept'") == [(5,)]


def test_first_version_is_migrated(db: Database) -> None:
    schema.prepare(db, version=1)
    db.execute("drop index runs_status")
    db.execute("drop table checkpoints")
    db.execute("insert into counters (name, next) values ('kept', 5)")

    schema.prepare(db)

    assert version(db) == str(schema.SCHEMA_VERSION)
    assert db.execute("select next from counters where name = 'kept'") == [(5,)]
    db.execute("drop index runs_status")


def test_sqlite_is_filled_anew_without_a_migration() -> None:
    with SQLite(None) as db:
        schema.prepare(db)
        db.execute("insert into counters (name, next) values ('lost', 5)")

        schema.prepare(db, version=NEXT, migrations={})

        assert version(db) == str(NEXT)
        assert db.execute("select next from counters where name = 'lost'") == []


def test_postgres_is_never_emptied(postgres_url: str) -> None:
    with PostgreSQL(postgres_url, "proj") as db:
        schema.prepare(db)
        db.execute("insert into counters (name, next) values ('kept', 5)")

        with pytest.raises(StoreError, match=f"no migration leads to {NEXT}"):
            schema.prepare(db, version=NEXT, migrations={})

        assert db.execute("select next from counters where name = 'kept'") == [(5,)]


def test_newer_file_is_left_alone(settings: Settings) -> None:
    with open_database(settings) as db:
        db.execute("update meta set value = '99'")
    with pytest.raises(SchemaTooNew, match=r"flor\.db has schema version 99"):
        open_database(settings)
    with sqlite3.connect(settings.sqlite_path) as connection:
        assert connection.execute("select value from meta").fetchone() == ("99",)
    connection.close()


def test_two_processes_create_it_at_once(
    settings: Settings, journal: Callable[..., object]
) -> None:
    journal()
    code = (
        "import pathlib, sys; from flor.config import Settings; "
        "from flor.store.database import open_database; "
        "db = open_database(Settings(root=pathlib.Path(sys.argv[1]), projid='proj'))"
    )
    command = [sys.executable, "-c", code, str(settings.root)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(p.communicate()[1], p.returncode) for p in processes] == [("", 0)] * 4
