"""flor.record.publish: a run's journal as one compressed file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from flor.record.publish import payload


def lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(content).splitlines()]


def write(run_dir: Path, name: str, rows: list[Any], tail: str = "") -> None:
    (run_dir / name).write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


RUN = {"t": "run", "run_id": "r"}
LOOP = {"t": "loop", "id": 1, "name": "i", "parent": 0, "iteration": 0, "len": 3, "at": 0}
TIMES = {"t": "times", "loop": 1, "first": 0, "n": 3, "sum": 0.5, "each": "AAAA"}
END = {"t": "end", "status": "finished"}


def test_children_follow_the_main_journal(tmp_path: Path) -> None:
    write(tmp_path, "journal.jsonl", [RUN, [1, 0, 0, 0.5], END])
    write(tmp_path, "child-7-ab.jsonl", [{"t": "child", "run_id": "r"}, [1, 0, 0, 7]], "[1,0,")
    found = lines(payload(tmp_path, 10**6))
    assert found == [RUN, [1, 0, 0, 0.5], END, {"t": "child", "run_id": "r"}, [1, 0, 0, 7]]


def test_over_the_limit_the_newest_value_of_each_loop_stays(tmp_path: Path) -> None:
    inner = [[2, 1, i, 0.123456789 * i] for i in range(20_000)]
    rows = [RUN, [1, 0, 0, "top"], LOOP, *inner, TIMES, [1, 0, 0, "again"], END]
    write(tmp_path, "journal.jsonl", rows)
    found = lines(payload(tmp_path, 10_000))
    assert found[:3] == [RUN, [1, 0, 0, "top"], LOOP]
    assert inner[-1] in found
    assert sum(isinstance(line, list) for line in found) == 3
    assert TIMES | {"each": None} in found
    assert found[-2]["text"].startswith("summary")
    assert found[-1] == END


def test_long_lines_cross_blocks(tmp_path: Path) -> None:
    rows = [RUN, [1, 0, 0, "x" * 3_000_000], [1, 0, 0, "y"]]
    write(tmp_path, "journal.jsonl", rows, "torn")
    assert lines(payload(tmp_path, 10**7)) == rows
