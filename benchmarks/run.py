"""All benchmarks, or those of one group; writes their tables into README.md between its markers.

python benchmarks/run.py [--group recording|checkpoints|propagation] [--only ours|peers]
                         [--rounds N] [--dry]
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

import checkpoint_cost
import checkpoint_overhead
import dataframe
import harness
import import_time
import ingest
import log_call
import propagation
import restore
import run_overhead

README = Path(__file__).with_name("README.md")
GROUPS = {
    "recording": (log_call, import_time, run_overhead, ingest, dataframe),
    "checkpoints": (checkpoint_cost, checkpoint_overhead, restore),
    "propagation": (propagation,),
}


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = platform.python_version()
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {python}, {platform.system()}"


def commit() -> str:
    """The measured code: figures of a tree that somebody is editing belong to no commit."""
    here = README.parent
    name = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=here, text=True)
    edited = subprocess.run(
        ["git", "diff", "--quiet", "HEAD", "--", "../flor"], cwd=here
    ).returncode
    return f"commit {name.strip()}{' with changes' if edited else ''}"


def write(group: str, text: str) -> None:
    """Replace a group's table."""
    begin, end = f"<!-- figures: {group} -->", "<!-- end of figures -->"
    before, _, rest = README.read_text().partition(begin)
    _, _, after = rest.partition(end)
    README.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def run(groups: Iterable[str], only: str | None, rounds: int | None, *, dry: bool) -> None:
    for group in groups:
        measured = commit()
        subjects = harness.subjects(only) if group == "recording" else [harness.OURS]
        figures = [
            figure for module in GROUPS[group] for figure in module.measure(subjects, rounds)
        ]
        day = datetime.date.today().isoformat()
        often = f", {rounds} rounds" if rounds else ""
        text = f"{day}, {machine()}, {measured}{often}.\n\n{harness.table(figures)}"
        print(text)
        missed = [figure.what for figure in figures if figure.missed]
        print("\nmissed goals:", "; ".join(missed) or "none", flush=True)
        if not dry:
            write(group, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", choices=GROUPS, help="measure only these")
    parser.add_argument("--only", choices=["ours", "peers"], help="measure one side")
    parser.add_argument("--rounds", type=int, help="how often to measure each (minimum counts)")
    parser.add_argument("--dry", action="store_true", help="print the tables, write nothing")
    chosen = parser.parse_args()
    run([chosen.group] if chosen.group else GROUPS, chosen.only, chosen.rounds, dry=chosen.dry)


if __name__ == "__main__":
    main()
