"""Data frames on the terminal and in files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flor.cli.terminal import clean_json, console, echo, encodable, styled, write_exact
from flor.errors import QueryError

if TYPE_CHECKING:
    import pandas as pd

    from flor.config import Settings

TO_STDOUT = "-"
CELL_CHARACTERS = 40


def query(settings: Settings, names: tuple[str, ...], where: str | None) -> pd.DataFrame:
    from flor.store.project import opened
    from flor.store.query import dataframe

    with opened(settings) as project:
        return dataframe(settings, project.db, names, where)


def sql(settings: Settings, text: str) -> pd.DataFrame:
    from flor.store.project import opened
    from flor.store.query import sql as answer

    with opened(settings) as project:
        return answer(settings, project.db, text)


def write(
    frame: pd.DataFrame, *, csv: str | None, json: str | None, parquet: str | None, limit: int
) -> None:
    """Print the frame, or write it in the one form that was asked for."""
    if csv is not None:
        _text(frame.to_csv(index=False), csv, len(frame))
    elif json is not None:
        _text(to_json(frame) + "\n", json, len(frame))
    elif parquet is not None:
        _parquet(frame, Path(parquet))
    else:
        show(frame, limit)


def to_json(frame: pd.DataFrame) -> str:
    """Rows as JSON objects; NaN and missing are null, infinities are text."""
    import json

    columns = [
        [_json_value(value, missing) for value, missing in zip(series, series.isna(), strict=True)]
        for _, series in frame.items()
    ]
    names = [str(name) for name in frame.columns]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if not rows:
        return "[]"
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f"[\n{clean_json(text)}\n]"


def show(frame: pd.DataFrame, limit: int) -> None:
    """The frame as a table as wide as the terminal; the middle of a long one is left out."""
    from rich import box
    from rich.table import Table

    if frame.empty:
        echo("no rows")
        return
    shown = frame if len(frame) <= limit else _ends(frame, limit)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    numeric = [series.dtype.kind in "iufb" for _, series in shown.items()]
    for name, right in zip(shown.columns, numeric, strict=True):
        table.add_column(styled(str(name)), justify="right" if right else "left", overflow="fold")
    columns = [[_cell(value) for value in series] for _, series in shown.items()]
    for number, row in enumerate(zip(*columns, strict=True)):
        if len(shown) < len(frame) and number == (limit + 1) // 2:
            table.add_row(*("…" for _ in row))
        table.add_row(*row)
    console().print(table)
    if len(shown) < len(frame):
        echo(f"{len(frame):,} rows; --limit shows more, --csv and --parquet write them all")


def _ends(frame: pd.DataFrame, limit: int) -> pd.DataFrame:
    import pandas as pd

    first = (limit + 1) // 2
    return (
        pd.concat([frame.head(first), frame.tail(limit - first)])
        if limit > first
        else frame.head(first)
    )


def _cell(value: Any) -> Any:
    if _is_missing(value):
        return ""
    if isinstance(value, float):
        text = f"{value:.6g}"
    elif hasattr(value, "isoformat"):
        text = str(value)[:19]
    else:
        text = str(value)
    if len(text) > CELL_CHARACTERS:
        text = text[: CELL_CHARACTERS - 1] + "…"
    return styled(text)


def _is_missing(value: Any) -> bool:
    import pandas as pd

    if isinstance(value, float):
        return math.isnan(value)
    return value is None or value is pd.NA or value is pd.NaT


def _json_value(value: Any, missing: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_value(item, _is_missing(item)) for key, item in value.items()}
    if isinstance(value, list):
        return [_json_value(item, _is_missing(item)) for item in value]
    if missing is True or bool(missing):
        return None
    if hasattr(value, "item"):
        value = value.item()
    if hasattr(value, "isoformat"):
        return value.isoformat(sep=" ") if hasattr(value, "hour") else value.isoformat()
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    if isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _text(text: str, target: str, count: int) -> None:
    if target == TO_STDOUT:
        write_exact(text)
        return
    path = Path(target)
    try:
        path.write_bytes(encodable(text).encode())
    except OSError as error:
        raise QueryError(f"cannot write {path}: {error.strerror}") from error
    echo(f"wrote {count:,} rows to {path}", err=True)


def _parquet(frame: pd.DataFrame, path: Path) -> None:
    """DuckDB writes Parquet, so that pyarrow is not needed."""
    import duckdb

    plain = frame.copy()
    for name, series in plain.items():
        if series.dtype.kind == "O":  # Python objects, and texts
            plain[name] = [None if _is_missing(x) else _parquet_value(x) for x in series]
    plain.columns = [encodable(str(name)) for name in plain.columns]
    with duckdb.connect() as connection:
        connection.register("frame", plain)
        try:
            connection.table("frame").write_parquet(str(path))
        except (duckdb.Error, OSError) as error:
            raise QueryError(f"cannot write {path}: {error}") from error
    echo(f"wrote {len(frame):,} rows to {path}", err=True)


def _parquet_value(value: Any) -> str:
    import json

    return json.dumps(value) if isinstance(value, (list, dict)) else encodable(str(value))
