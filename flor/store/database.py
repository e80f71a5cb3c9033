"""One small interface over SQLite and PostgreSQL.

SQL is written once, with `?` for bound values and `in_list(?)` for a bound list. Reads need no
transaction; whatever writes does so inside `transaction()`, of which a database runs one at a
time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import sqlite3
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

from flor.config import Settings
from flor.errors import StoreError
from flor.store import schema

if TYPE_CHECKING:
    import psycopg

Row = tuple[Any, ...]

BUSY_SECONDS = 60.0
WRITER_LOCK = 0x666C6F72  # "flor": the advisory lock of whoever writes to a PostgreSQL database

_TOKEN = re.compile(r"'(?:[^']|'')*'|in_list\(\?\)|\?|%")


class Database(ABC):
    """A connection, for the thread that opened it. Every failure is a StoreError."""

    dialect: ClassVar[str]
    place: str  # the file or URL, for messages; without a password
    scope: str | None  # the project that this session sees, where several share a database

    @abstractmethod
    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run one statement; all its rows. A list bound to `in_list(?)` may have any length."""

    @abstractmethod
    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row."""

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert many rows the fastest way; none of them may exist."""

    @abstractmethod
    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """All or nothing, and alone among writers. Inside another one it joins that one."""

    @abstractmethod
    def relations(self) -> list[tuple[str, str]]:
        """(name, "table" or "view") of what there is."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def allocate(self, counter: str, count: int = 1) -> int:
        """Reserve `count` numbers in a row, inside a transaction; the first of them."""
        sql = "update counters set next = next + ? where name = ? returning next"
        return int(self.execute(sql, (count, counter))[0][0]) - count

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SQLite(Database):
    dialect = "sqlite"

    def __init__(self, path: Path | None) -> None:
        """Open the file, or a database in memory. Raises sqlite3 errors, not StoreError."""
        self.place = str(path or "the database in memory")
        self.scope = None
        self._inside = False
        name = str(path or ":memory:")
        self._connection = sqlite3.connect(name, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            for pragma in (
                "journal_mode = wal",
                "synchronous = normal",  # a power cut may cost the newest rows, which are a cache
                "cache_size = -65536",
                "mmap_size = 1073741824",
            ):
                self._set(pragma)
            self._connection.execute("select count(*) from sqlite_master").fetchone()
        except BaseException:
            self._connection.close()
            raise

    def _set(self, pragma: str) -> None:
        """Going over to WAL does not wait for another process that does so, as statements do."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._connection.execute(f"pragma {pragma}")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        bound = [json.dumps(item) if isinstance(item, list) else item for item in params]
        with self._explained():
            return self._connection.execute(_for_sqlite(sql), bound).fetchall()

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._explained():
            self._connection.executemany(_for_sqlite(sql), rows)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" * len(columns))
        self.executemany(_insert(table, columns, marks), rows)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        if self._inside:
            yield
            return
        self.execute("begin immediate")
        self._inside = True
        try:
            yield
            self.execute("commit")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            raise
        finally:
            self._inside = False

    def relations(self) -> list[tuple[str, str]]:
        found = self.execute(
            "select name, type from sqlite_master "
            "where type in ('table', 'view') and name not like 'sqlite_%'"
        )
        return [(name, kind) for name, kind in found]

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _explain(self.place, error) from error


class PostgreSQL(Database):
    dialect = "postgres"

    def __init__(self, url: str, projid: str) -> None:
        self.place = _without_password(url)
        self.scope = projid
        try:
            import psycopg
        except ImportError as error:
            raise StoreError(
                f"{self.place} needs the PostgreSQL driver; "
                "run: pip install 'flor-hindsight[postgres]'"
            ) from error
        self._error = psycopg.Error
        self._inside = False
        with self._explained():
            self._connection = psycopg.connect(url, autocommit=True)
            # Messages such as "relation does not exist, skipping" are nobody's news.
            self._connection.execute("set client_min_messages = warning")
        _read_timestamps_as_text(self._connection)

    def execute(self, sql: str, params: Sequence[Any] = ()) -> list[Row]:
        with self._explained():
            cursor = self._connection.execute(_for_postgres(sql), params)
            return cursor.fetchall() if cursor.description else []

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._explained(), self._connection.cursor() as cursor:
            cursor.executemany(_for_postgres(sql), rows)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        command = f"copy {table} ({', '.join(columns)}) from stdin"
        with (
            self._explained(),
            self._connection.cursor() as cursor,
            cursor.copy(command.encode()) as copy,
        ):
            for row in rows:
                copy.write_row(row)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        if self._inside:
            yield
            return
        self._inside = True
        try:
            with self._explained(), self._connection.transaction():
                self.execute("select pg_advisory_xact_lock(?)", (WRITER_LOCK,))
                yield
        finally:
            self._inside = False

    def relations(self) -> list[tuple[str, str]]:
        found = self.execute(
            "select table_name, case table_type when 'VIEW' then 'view' else 'table' end "
            "from information_schema.tables where table_schema = current_schema()"
        )
        return [(name, kind) for name, kind in found]

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise StoreError(f"{self.place}: {str(error).strip()}") from error


def open_database(settings: Settings, *, in_memory: bool = False) -> Database:
    """The project's database, made on first use, with the schema of this flor.

    With `in_memory`, an empty one that leaves no trace.
    """
    if settings.database.startswith(("postgres://", "postgresql://")):
        db: Database = PostgreSQL(settings.database, settings.projid)
    elif settings.database:
        raise StoreError(
            f"database = {settings.database!r} is not understood; give a postgresql:// URL, or "
            "nothing for the SQLite file in .flor/"
        )
    else:
        db = SQLite(None) if in_memory else _open_sqlite(settings.sqlite_path)
    try:
        schema.prepare(db)
    except BaseException:
        db.close()
        raise
    return db


def _open_sqlite(path: Path) -> SQLite:
    try:
        _make_folder(path.parent)
        return SQLite(path)
    except OSError as error:
        return _in_memory(path, error)
    except sqlite3.OperationalError as error:
        if _is_busy(error):
            raise _explain(str(path), error) from error
        return _in_memory(path, error)
    except sqlite3.DatabaseError:
        return _replace_broken(path)


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / ".gitignore"
    if not own.exists():
        own.write_text("*\n", encoding="ascii")


def _in_memory(path: Path, error: Exception) -> SQLite:
    """Queries work without a file; they read all journals each time."""
    warnings.warn(
        f"cannot write {path} ({error}); the journals are read into memory instead, anew by each "
        "process. Make the folder writable to keep them",
        stacklevel=5,
    )
    return SQLite(None)


def _replace_broken(path: Path) -> SQLite:
    """Move a file that is no database aside, once, whoever of several processes comes first."""
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        with contextlib.suppress(sqlite3.DatabaseError):
            return SQLite(path)  # another process has replaced it
        number = 1
        while (aside := path.with_name(f"{path.name}.broken-{number}")).exists():
            number += 1
        path.rename(aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        warnings.warn(
            f"{path} is not a database; it was moved to {aside.name} and is filled again from the "
            "journals. Nothing is lost; remove the moved file when you like",
            stacklevel=5,
        )
        return SQLite(path)


def _explain(place: str, error: sqlite3.Error) -> StoreError:
    if _is_busy(error):
        return StoreError(
            f"{place} was locked by another process for {BUSY_SECONDS:.0f} s; try again when "
            "that has finished"
        )
    if "malformed" in str(error) or "not a database" in str(error):
        return StoreError(
            f"{place} is damaged ({error}); remove it, the next query fills it again from the "
            "journals"
        )
    return StoreError(f"{place}: {error}")


def _is_busy(error: sqlite3.Error) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _insert(table: str, columns: Sequence[str], marks: str) -> str:
    return f"insert into {table} ({', '.join(columns)}) values ({marks})"  # noqa: S608 - our names


@lru_cache(maxsize=256)
def _for_sqlite(sql: str) -> str:
    return sql.replace("in_list(?)", "in (select value from json_each(?))")


@lru_cache(maxsize=256)
def _for_postgres(sql: str) -> bytes:
    marks = {"?": "%s", "%": "%%", "in_list(?)": "= any(%s)"}

    def mark(match: re.Match[str]) -> str:
        return marks.get(match[0]) or match[0].replace("%", "%%")

    return _TOKEN.sub(mark, sql).encode()


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}:***@{host}"))


def _read_timestamps_as_text(connection: psycopg.Connection[Any]) -> None:
    """Both databases give `YYYY-MM-DD HH:MM:SS.ffffff`."""
    from psycopg.adapt import Buffer, Loader

    class TextLoader(Loader):
        def load(self, data: Buffer) -> str:
            text = bytes(data).decode()
            whole, _, fraction = text.partition(".")
            return f"{whole}.{fraction:0<6}"

    connection.adapters.register_loader("timestamp", TextLoader)
