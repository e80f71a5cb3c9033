"""DuckDB in memory, where a query reaches nothing but the frames that it is given.

No files, no network, no extensions, no Python variables; settings cannot be changed. `NaN` counts
as null, lists, dicts and mixtures are JSON or plain text, a stored object is its description.
Half a surrogate pair, and a NUL, is written as an escape.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from flor.errors import QueryError
from flor.store.arrays import EXACT, masked, strings
from flor.store.cells import clean, is_plain


def check_statement(query: str) -> None:
    """Raises QueryError unless this is one statement that reads."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        raise QueryError(shortened(error)) from None
    if len(statements) != 1:
        count = "no statement" if not statements else f"{len(statements)} statements"
        raise QueryError(f"one SELECT at a time, but this is {count}: {query!r}")
    kind = statements[0].type
    if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        name = kind.name
        raise QueryError(f"queries only read; give a SELECT, not {name}: {query!r}")


@contextmanager
def sandbox() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that reaches nothing outside; its settings are locked by `lock`."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "temp_directory": "",  # else it spills into a folder of the user's working directory
        },
    )
    try:
        yield connection
    finally:
        connection.close()


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("set lock_configuration = true")


def answer(connection: duckdb.DuckDBPyConnection, query: str) -> pd.DataFrame:
    """The result. In a thread of its own, because DuckDB may not look for Ctrl-C for minutes."""
    results: list[pd.DataFrame] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            connection.execute(query)
            types = [str(column[1]) for column in connection.description or ()]
            results.append(_whole_numbers(connection.df(), types))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="flor-query", daemon=True).start()
    try:
        done.wait()
    except BaseException:
        connection.interrupt()
        done.wait()
        raise
    if errors:
        raise errors[0]
    return results[0]


def _whole_numbers(frame: pd.DataFrame, types: Sequence[str]) -> pd.DataFrame:
    """A sum of ints is a HUGEINT, which would come back as a float."""
    columns = {}
    for index, kind in enumerate(types):
        values = frame.iloc[:, index]
        if kind == "HUGEINT" and values.abs().max() <= EXACT:
            missing = values.isna().to_numpy()
            ints = values.fillna(0).to_numpy(np.int64)
            values = pd.Series(masked(ints, missing) if missing.any() else ints)
        columns[frame.columns[index]] = values
    return pd.DataFrame(columns) if "HUGEINT" in types else frame


def for_sql(frame: pd.DataFrame, mentioned: Collection[str]) -> pd.DataFrame:
    """A copy that DuckDB understands: no Python objects, no two names that differ in case only.

    The second of such names gets a number (`loss_2`); whoever mentions one was refused before.
    With `mentioned` (in lower case), columns of objects that are not mentioned are left out.
    """
    columns: dict[str, Any] = {}
    seen: set[str] = set()
    taken = {name.lower() for name in frame.columns}
    for name in frame.columns:
        values = frame[name]
        shown = name if name.lower() not in seen else _numbered(name, taken)
        seen.add(name.lower())
        if values.dtype == object or isinstance(values.dtype, pd.StringDtype):
            if values.dtype == object and mentioned and name.lower() not in mentioned:
                continue
            values = _plain(values)
        columns[shown] = values
    return pd.DataFrame(columns, index=frame.index)


def _numbered(name: str, taken: set[str]) -> str:
    """A name like this one that no other column has; `taken` grows by it."""
    number = 2
    while f"{name}_{number}".lower() in taken:
        number += 1
    taken.add(f"{name}_{number}".lower())
    return f"{name}_{number}"


def _plain(values: pd.Series[Any]) -> Any:
    """Objects as numbers where all are, else as text."""
    items = values.tolist()
    if values.dtype == object:
        if set(map(type, items)) <= {int, float, type(None)}:
            return np.array([np.nan if item is None else float(item) for item in items])
        items = [_text(item) for item in items]
    else:
        items = [item if isinstance(item, str) else None for item in items]
    if not is_plain("\n".join(item for item in items if item is not None)):
        items = [item and clean(item) for item in items]
    return strings(items)


def _text(item: Any) -> str | None:
    if item is None or isinstance(item, str):
        return item
    if isinstance(item, (list, dict, bool)):
        return json.dumps(item, ensure_ascii=False, default=repr)
    return str(item)


def shortened(error: Exception) -> str:
    """DuckDB's sentence, without its class, its candidates and its picture of the place."""
    message = re.split(r"\n\s*\n|\n(?:LINE \d|Candidate|Did you mean|\t)", str(error).strip())[0]
    return re.sub(r"^\w+(?: \w+)? Error: ", "", message).strip().rstrip("!.")
