"""Many runs out of one real run: its stored records copied, with other ids, times and values.

Recording 30,000 runs would take hours; what a query meets is the same.
"""

from __future__ import annotations

import json
import random
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

# Context ids are random signed 64-bit numbers. FlorDB joins on them as floats, so the copies' ids
# must differ by much more than a float's precision; towards zero, so that none overflows.
OFFSET = 2**45
SHIFTED = "iif({0} > 0, {0} - :offset, {0} + :offset)"


def copy_journal(root: Path, count: int) -> None:
    """Make the project's only run of flor into `count` runs, a minute apart."""
    runs = root / ".flor" / "runs"
    (original,) = runs.iterdir()
    lines = (original / "journal.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    run = next(line for line in parsed if isinstance(line, dict) and line["t"] == "run")
    begun = datetime.fromisoformat(run["tstamp"].removesuffix("Z"))
    for number in range(1, count):
        at = begun - timedelta(minutes=number)
        run_id = f"{at:%Y%m%d-%H%M%S}-{number:06x}"
        stamp = at.isoformat(timespec="microseconds") + "Z"
        renamed = json.dumps(run | {"run_id": run_id, "tstamp": stamp})
        text = "\n".join(
            renamed if line is run else varied(line) or lines[position]
            for position, line in enumerate(parsed)
        )
        (runs / run_id).mkdir()
        (runs / run_id / "journal.jsonl").write_text(text + "\n")


def varied(line: list | dict) -> str | None:
    """A record of a float with another float; None for any other line."""
    if isinstance(line, list) and len(line) == 4 and isinstance(line[3], float):
        return f"[{line[0]},{line[1]},{line[2]},{random.random()!r}]"
    return None


def copy_flordb(root: Path, count: int) -> None:
    """The same for a FlorDB database, which is in the project (4.x) or at home (3.x)."""
    (path,) = [*root.glob(".flor/*.db"), *root.parent.glob(".flor/*.db")]
    connection = sqlite3.connect(path)
    (first,) = connection.execute("select min(tstamp) from logs").fetchone()
    digits = "microseconds" if "." in first else "seconds"  # pandas reads only one format
    begun = datetime.fromisoformat(first)
    changed = {"tstamp": ":stamp"}
    changed |= {name: SHIFTED.format(name) for name in ("ctx_id", "p_ctx_id")}
    values = [
        {
            "stamp": (begun - timedelta(minutes=number)).isoformat(timespec=digits),
            "offset": number * OFFSET,
        }
        for number in range(1, count)
    ]
    found = {name for (name,) in connection.execute("select name from sqlite_master")}
    for table in {"logs", "loops"} & found:
        multiply(connection, table, changed, values)
    connection.commit()
    connection.close()


def copy_mlflow(root: Path, count: int) -> None:
    """The same for MLflow's SQLite store."""
    connection = sqlite3.connect(root / "mlflow.db")
    values = [{"uuid": f"{number:032x}"} for number in range(1, count)]
    named = {"run_uuid": ":uuid"}
    numbers = named | {"value": "abs(random() / 9223372036854775808.0)"}
    for table, changed in {
        "runs": named,
        "tags": named,
        "metrics": numbers,
        "latest_metrics": numbers,
    }.items():
        multiply(connection, table, changed, values)
    connection.commit()
    connection.close()


def multiply(
    connection: sqlite3.Connection,
    table: str,
    changed: dict[str, str],
    values: list[dict[str, int | str]],
) -> None:
    """Insert the rows that `table` has once more for each of `values`, columns `changed`."""
    connection.execute(f"create temp table first_{table} as select * from {table}")
    names = [row[1] for row in connection.execute(f"pragma table_info({table})")]
    picked = ", ".join(changed.get(name, name) for name in names)
    connection.executemany(f"insert into {table} select {picked} from first_{table}", values)
