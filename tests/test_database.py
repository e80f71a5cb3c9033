"""One interface over SQLite and PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from flor.config import Settings
from flor.errors import StoreError
from flor.store.database import Database, _for_postgres, _without_password, open_database


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Database]:
    if request.param == "postgres":
        settings = replace(settings, database=request.getfixturevalue("postgres_url"))
    with open_database(settings) as found:
        yield found


def count(db: Database) -> int:
    return int(db.execute("select count(*) from notes")[0][0])


def insert(db: Database, *numbers: int) -> None:
    columns = ("run_pk", "file_no", "note_no", "text")
    db.insert("notes", columns, ((1, 0, number, f"note {number}") for number in numbers))


def test_lists_and_percent_signs_are_bound(db: Database) -> None:
    insert(db, 1, 2, 3)

    found = db.execute(
        "select note_no, '100%?' from notes where note_no in_list(?) and text like ? order by 1",
        ([1, 3, 9], "note%"),
    )

    assert found == [(1, "100%?"), (3, "100%?")]
    assert db.execute("select note_no from notes where note_no in_list(?)", ([],)) == []


def test_quoted_question_marks_stay() -> None:
    assert _for_postgres("a = ? and b = 'it''s ? 5%' and c % 2") == (
        b"a = %s and b = 'it''s ? 5%%' and c %% 2"
    )


def test_transaction_is_all_or_nothing(db: Database) -> None:
    insert(db, 1)
    with pytest.raises(ZeroDivisionError), db.transaction():
        insert(db, 2)
        with db.transaction():
            insert(db, 3)
        raise ZeroDivisionError
    assert count(db) == 1

    with db.transaction():
        insert(db, 2)
        with db.transaction():
            insert(db, 3)
    assert count(db) == 3


def test_failure_is_explained_and_the_next_statement_works(db: Database) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        db.execute("select 1 from nowhere")
    with pytest.raises(StoreError), db.transaction():
        insert(db, 1)
        insert(db, 1)
    assert count(db) == 0


def test_numbers_are_never_given_twice(db: Database) -> None:
    with db.transaction():
        assert [db.allocate("loop"), db.allocate("loop", 10), db.allocate("loop")] == [1, 2, 12]


def test_types_come_back_alike(db: Database) -> None:
    with db.transaction():
        db.execute(
            "insert into runs (run_pk, run_id, projid, tstamp, filename, status, argv, cwd, host, "
            "user_name, pid, python, platform, origin, closed, revision, environment) values "
            "(1, 'r', 'p', ?, 'f', 's', '[]', '', '', '', 0, '', '', 'local', ?, 0, '{}')",
            ("2026-11-18 19:03:12.000250", True),
        )
        db.execute(
            "insert into packs (run_pk, part, revision, format, content) values (1, '', 1, 1, ?)",
            (b"\0\xff",),
        )
    assert db.execute("select tstamp, closed, ended from runs where closed") == [
        ("2026-11-18 19:03:12.000250", True, None)
    ]
    assert db.execute("select content from packs") == [(b"\0\xff",)]


def test_folder_hides_itself_from_git(settings: Settings) -> None:
    open_database(settings).close()

    assert (settings.flor_dir / ".gitignore").read_text() == "*\n"


def test_file_that_is_no_database_is_moved_aside(settings: Settings) -> None:
    settings.flor_dir.mkdir()
    for number in (1, 2):
        settings.sqlite_path.write_bytes(
            b"this is not a database, it is a text of some length" * 99
        )

        with pytest.warns(UserWarning, match=rf"moved to flor\.db\.broken-{number}"):
            db = open_database(settings)

        insert(db, 1)
        db.close()
        assert (settings.flor_dir / f"flor.db.broken-{number}").exists()


def test_unwritable_folder_means_memory(settings: Settings) -> None:
    settings.flor_dir.write_text("a file where the folder should be")

    with pytest.warns(UserWarning, match=r"cannot write .*flor\.db"):
        db = open_database(settings)

    insert(db, 1)
    assert count(db) == 1
    db.close()


def test_unknown_database_is_refused(settings: Settings) -> None:
    with pytest.raises(StoreError, match=r"mysql://.*give a postgresql:// URL"):
        open_database(replace(settings, database="mysql://there"))


def test_absent_server_is_named_without_the_password(settings: Settings) -> None:
    url = "postgresql://ada:secret@127.0.0.1:9/flor?connect_timeout=2"
    with pytest.raises(StoreError, match=r"ada:\*\*\*@127\.0\.0\.1:9") as caught:
        open_database(replace(settings, database=url))
    assert "secret" not in str(caught.value)
    assert _without_password("postgresql:///flor") == "postgresql:///flor"


def test_missing_driver_says_what_to_install(settings: Settings) -> None:
    code = (
        "import sys, pathlib; sys.modules['psycopg'] = None\n"
        "from flor.config import Settings; from flor.store.database import open_database\n"
        "from flor.errors import StoreError\n"
        "try: open_database(Settings(root=pathlib.Path('.'), database='postgresql://h/d'))\n"
        "except StoreError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'flor-hindsight[postgres]'" in done.stdout


def test_writers_wait_for_each_other(db: Database, request: pytest.FixtureRequest) -> None:
    """Four processes add to one counter; no addition is lost."""
    settings = request.getfixturevalue("settings")
    url = "" if db.dialect == "sqlite" else request.getfixturevalue("postgres_url")
    code = (
        "import sys, pathlib\n"
        "from flor.config import Settings; from flor.store.database import open_database\n"
        "db = open_database(Settings(pathlib.Path(sys.argv[1]), 'proj', sys.argv[2]))\n"
        "for _ in range(25):\n"
        "    with db.transaction(): db.allocate('site', 2)\n"
    )
    command = [sys.executable, "-c", code, str(settings.root), url]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    with db.transaction():
        assert db.allocate("site") == 201
