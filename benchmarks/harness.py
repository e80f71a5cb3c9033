"""What the benchmarks share: subjects, temporary projects, child processes, tables.

Subjects are measured in turns, round after round, so that a noisy minute hits all of them; of the
rounds the minimum counts. A child script prints its figures with `report(...)`, see `CHILD`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import peers

Metrics = dict[str, float]
MARK = "@figures "

CHILD = """
import json, os, sys, time
clock = time.perf_counter

def report(**figures):
    print("\\n" + {mark!r} + json.dumps(figures), flush=True)

def memory_mb(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))
"""


@dataclass(frozen=True)
class Subject:
    """A program to measure: an interpreter that has it, and the name that it imports as."""

    name: str
    python: Path
    module: str

    @property
    def is_ours(self) -> bool:
        return self.module == "flor"

    def script(self, body: str, imports: bool = True) -> str:
        """`body` as a whole child script, in which `flor` is this subject's module."""
        head = CHILD.replace("{mark!r}", repr(MARK))
        return head + (f"import {self.module} as flor\n" if imports else "") + body


OURS = Subject("flor", Path(sys.executable), "flor")


@dataclass(frozen=True)
class Figure:
    """A row of the table. A peer's entry is a number, or words where there is no number."""

    what: str
    unit: str
    goal: float | None
    ours: float | None
    peers: dict[str, float | str] = field(default_factory=dict)
    more_is_better: bool = False

    @property
    def missed(self) -> bool:
        if self.goal is None or self.ours is None:
            return False
        return self.ours < self.goal if self.more_is_better else self.ours > self.goal

    def ratio(self) -> str:
        """How many times the best peer's figure ours fits into."""
        numbers = [value for value in self.peers.values() if not isinstance(value, str)]
        if not numbers or not self.ours or self.ours < 0 or self.more_is_better:
            return "-"
        return f"{number(min(numbers) / self.ours)} x"

    def row(self, names: list[str]) -> list[str]:
        sign = "≥" if self.more_is_better else "≤"
        goal = "-" if self.goal is None else f"{sign} {number(self.goal)} {self.unit}".rstrip()
        own = self.cell(self.ours) + (" **misses**" if self.missed else "")
        return [self.what, own, goal, *(self.cell(self.peers.get(n)) for n in names), self.ratio()]

    def cell(self, value: float | str | None) -> str:
        if value is None or isinstance(value, str):
            return value or "-"
        return f"{number(value)} {self.unit}".rstrip()


def number(value: float) -> str:
    """Whole numbers as they are, others with two or three significant digits."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"


def table(figures: Iterable[Figure]) -> str:
    """The figures as a markdown table."""
    figures = list(figures)
    names = list(dict.fromkeys(name for figure in figures for name in figure.peers))
    rows = [["what", "flor", "goal", *names, "best peer ÷ flor"]]
    rows += [figure.row(names) for figure in figures]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def rounds(
    subjects: Iterable[Subject], count: int, measure: Callable[[Subject], Metrics]
) -> dict[str, Metrics]:
    """`measure` each subject `count` times in turns; the minimum of each metric, by subject."""
    best: dict[str, Metrics] = {}
    for turn in range(count):
        for subject in subjects:
            print(f"  round {turn + 1}/{count}: {subject.name}", file=sys.stderr, flush=True)
            for name, value in measure(subject).items():
                kept = best.setdefault(subject.name, {})
                kept[name] = min(value, kept.get(name, value))
    return best


def figure(
    what: str, unit: str, goal: float | None, best: dict[str, Metrics], metric: str, **more: bool
) -> Figure:
    """One metric of all subjects as a row."""
    others = {name: found[metric] for name, found in best.items() if name != OURS.name}
    return Figure(what, unit, goal, best.get(OURS.name, {}).get(metric), others, **more)


@contextlib.contextmanager
def project(files: dict[str, str] | None = None) -> Iterator[Path]:
    """A temporary git repository with `files` committed; its parent is the children's HOME."""
    home = Path(tempfile.mkdtemp(prefix="flor-bench-"))
    try:
        root = home / "project"
        for name, text in {"README.md": "a project\n", **(files or {})}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (home / ".gitconfig").write_text("[user]\nname = Bench\nemail = bench@example.org\n")
        for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "start"]):
            subprocess.run(["git", *command], cwd=root, env=environment(root), check=True)
        yield root
    finally:
        shutil.rmtree(home, ignore_errors=True)


def environment(root: Path) -> dict[str, str]:
    """The user's environment without what would change a measurement, at home next to `root`."""
    dropped = ("FLOR_", "GIT_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"HOME": str(root.parent), "XDG_CONFIG_HOME": str(root.parent)}


@dataclass(frozen=True)
class Outcome:
    seconds: float  # from start to exit
    figures: Metrics  # what the child reported
    code: int


def run(
    root: Path,
    subject: Subject,
    script: str,
    name: str = "train.py",
    expect: int = 0,
    **variables: str,
) -> Outcome:
    """Write `script` into the project, run it there, and return what it reported."""
    (root / name).write_text(script)
    # A file: reading megabytes of progress bars from a pipe would compete with the child.
    with (root.parent / "output").open("w+") as output:
        begun = time.perf_counter()
        done = subprocess.run(
            [str(subject.python), name],
            cwd=root,
            env=environment(root) | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        seconds = time.perf_counter() - begun
        output.seek(0)
        lines = output.read().splitlines()
    if done.returncode != expect:
        tail = "\n".join(lines[-25:])
        raise SystemExit(f"{subject.name}: {name} exited with {done.returncode}:\n{tail}")
    marked = [line for line in lines if line.startswith(MARK)]
    figures = json.loads(marked[-1][len(MARK) :]) if marked else {}
    return Outcome(seconds, figures, done.returncode)


def disk_mb(folder: Path) -> float:
    """Size of the files under `folder`, hidden ones included."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def main(
    measure: Callable[[list[Subject], int | None], list[Figure]], *, trackers: bool = True
) -> None:
    """The command line of one benchmark; `trackers` are its peers."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--rounds", type=int, help="how often to measure each (minimum counts)")
    parser.add_argument("--only", choices=["ours", "peers"], help="measure one side")
    chosen = parser.parse_args()
    print(table(measure(subjects(chosen.only if trackers else "ours"), chosen.rounds)))


def subjects(only: str | None = None) -> list[Subject]:
    """Ours and the peers, which are installed if they are not there yet."""
    found = [] if only == "peers" else [OURS]
    if only != "ours":
        found += [Subject(p.name, peers.install(p), p.module) for p in peers.TRACKERS]
    return found
