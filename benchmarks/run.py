"""All benchmarks; writes the table into README.md between its markers.

python benchmarks/run.py [--only ours|peers] [--dry]
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
from pathlib import Path

import dataframe
import harness
import import_time
import ingest
import log_call
import run_overhead

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
ALL = (log_call, import_time, run_overhead, ingest, dataframe)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["ours", "peers"], help="measure one side")
    parser.add_argument("--dry", action="store_true", help="print the table, write nothing")
    chosen = parser.parse_args()
    measured = commit()
    subjects = harness.subjects(chosen.only)
    figures = [figure for module in ALL for figure in module.measure(subjects, None)]
    text = (
        f"{datetime.date.today().isoformat()}, {machine()}, {measured}.\n\n{harness.table(figures)}"
    )
    print(text)
    missed = [figure.what for figure in figures if figure.missed]
    print("\nmissed goals:", "; ".join(missed) or "none")
    if not chosen.dry:
        before, _, rest = README.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
