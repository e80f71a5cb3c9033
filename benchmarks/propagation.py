"""Whether `flor.propagate` puts a statement where it belongs in an older version; its CPU time.

Real histories: releases of training code from PyPI, out of whose older version a statement was
taken that both have; it has to come back. Variants of them rename variables, or leave no place, and
then it has to be refused. Generated: three scripts, edited at random. An answer that leaves the
older version as it is says that the statement is there, which is wrong, whoever gives it.

python benchmarks/propagation.py [--cases N] [--peer-cases N] [--cache FOLDER] [--failures FILE]
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import edits
import generated
import harness
import histories
import peers
import releases
from harness import Figure
from histories import NEGATIVE, SIZES, Case

CASES = 1500
PEER_CASES = 5
GENERATED = 160  # of each kind of edit
LIMIT = 60  # seconds for a case; then it counts as refused
SEED = 7
CHILD = """
import json, signal, sys, time

def late(*_):
    raise TimeoutError("more than {limit} s")

{place}
signal.signal(signal.SIGALRM, late)
answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    case = json.loads(line)
    began = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, {limit})
    try:
        text, why = place(case), ""
    except Exception as error:
        text, why = None, f"{{type(error).__name__}}: {{error}}"
    signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.process_time() - began
    print(json.dumps({{"text": text, "why": why, "seconds": seconds}}), file=answers, flush=True)
"""
FLOR = """
import flor
def place(case):
    return flor.propagate(case["new"], case["old"], case["line"])
"""
# As FlorDB's `replay` calls it: two files, the older one is overwritten. Importing flordb itself
# would make a database where it runs.
HLAST = """
import importlib.util, pathlib
folder = importlib.util.find_spec("flordb").submodule_search_locations[0]
sys.path.append(folder)
from hlast import backprop
new, old = pathlib.Path("new.py"), pathlib.Path("old.py")
def place(case):
    new.write_text(case["new"])
    old.write_text(case["old"])
    backprop(case["line"], new, old)
    return old.read_text()
"""
PATCH = """
from diff_match_patch import diff_match_patch
tool = diff_match_patch()
def place(case):
    text, applied = tool.patch_apply(tool.patch_make(case["bare"], case["new"]), case["old"])
    if not all(applied):
        raise ValueError("a patch does not apply")
    return text
"""


@dataclass(frozen=True)
class Placer:
    name: str
    python: Path
    place: str
    few: bool = False  # whether it is given some of the cases only

    def command(self) -> list[str]:
        script = CHILD.format(place=self.place, limit=LIMIT)
        isolated = [] if self.place is FLOR else ["-I"]
        return [str(self.python), *isolated, "-X", "utf8", "-W", "ignore", "-c", script]


@dataclass(frozen=True)
class Verdict:
    case: Case
    outcome: str  # right, wrong, refused, failed
    seconds: float
    text: str | None
    why: str


def placers(only: str | None) -> list[Placer]:
    found = [] if only == "peers" else [Placer("flor", Path(sys.executable), FLOR)]
    if only != "ours":
        for peer, place, few in (
            (peers.HLAST, HLAST, True),
            (peers.DIFF_MATCH_PATCH, PATCH, False),
        ):
            found.append(Placer(peer.name, peers.install(peer), place, few))
    return found


def all_cases(cache: Path, count: int) -> list[Case]:
    rng = Random(SEED)
    found = list(generated.cases(min(GENERATED, count), rng))
    return found + histories.cases(releases.releases(cache), count, rng)


def few(cases: Iterable[Case], count: int) -> list[Case]:
    """So many of each kind, and of each size of the real ones, evenly spaced."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.kind, case.size if case.kind == "real" else ""), []).append(case)
    picked = []
    for group in groups.values():
        number = min(count, len(group))
        picked += [group[i * len(group) // number] for i in range(number)]
    return picked


def verdicts(placer: Placer, cases: list[Case]) -> Iterator[Verdict]:
    """Each case given to a process of the placer, which is started again where it dies."""
    with tempfile.TemporaryDirectory(prefix="flor-bench-") as folder:
        child = None
        often = max(1, len(cases) // 5)
        for number, case in enumerate(cases):
            if number % often == 0:
                print(f"  {placer.name}: {number}/{len(cases)}", file=sys.stderr, flush=True)
            if child is None:
                child = _start(placer, folder)
            asked = {"new": case.new, "old": case.old, "line": case.line, "bare": case.bare}
            child.stdin.write(json.dumps(asked) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
            if line:
                answer = json.loads(line)
            else:
                _stop(child)
                child, answer = None, {"text": None, "why": "died", "seconds": math.nan}
            yield Verdict(case, _outcome(case, placer, answer), **answer)
        if child is not None:
            _stop(child)


def _start(placer: Placer, folder: str) -> subprocess.Popen[str]:
    with open(os.path.join(folder, "errors"), "w") as errors:
        return subprocess.Popen(
            placer.command(),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
        )


def _stop(child: subprocess.Popen[str]) -> None:
    child.stdin.close()
    child.stdout.close()
    child.wait()


def _outcome(case: Case, placer: Placer, answer: dict[str, Any]) -> str:
    if answer["text"] is None:
        # Ours says NoPlace; anything else that it raises is an error of it.
        expected = placer.place is not FLOR or answer["why"].startswith("NoPlace")
        return "refused" if expected else "failed"
    if case.expected is None:
        return "wrong"
    return "right" if is_right(case, answer["text"]) else "wrong"


def is_right(case: Case, text: str) -> bool:
    if text == case.expected:
        return True
    if not edits.parses(text):
        return False
    found, wanted = ast.parse(text), ast.parse(case.expected)
    if ast.dump(found) == ast.dump(wanted):
        return True
    if case.kind.startswith("generated"):
        return generated.is_equivalent(case, text)
    # A peer writes the tree and not the text, in which some constants are joined.
    return ast.dump(found) == ast.dump(ast.parse(ast.unparse(wanted)))


Chosen = Callable[[Case], bool]


def figures(found: dict[str, list[Verdict]]) -> list[Figure]:
    rows: list[Figure] = []

    def row(what: str, chosen: Chosen, outcome: str, goal: float | None) -> None:
        picked = {name: [v for v in all_ if chosen(v.case)] for name, all_ in found.items()}
        more = outcome == "right" or (outcome == "refused" and "refused" in what)
        shares = {name: share(one, outcome, more) for name, one in picked.items() if one}
        most = max(len(one) for one in picked.values())
        fewer = [f"; {n} {len(one)}" for n, one in picked.items() if one and len(one) < most]
        label = f"{what} ({most:,} cases{''.join(fewer)})"
        ours = shares.pop("flor", None)
        rows.append(Figure(label, "%", goal, ours, shares, more_is_better=more))

    def is_real(case: Case) -> bool:
        return case.kind == "real"

    def of(kind: str, size: str | None = None) -> Chosen:
        return lambda case: case.kind == kind and size in (None, case.size)

    for size in SIZES:
        row(f"real, {size}: right place", of("real", size), "right", 99.0)
    row("real, all: placed wrong", is_real, "wrong", 0.5)
    row("renamed variables: right place", of("renamed"), "right", 97.0)
    row("renamed variables: placed wrong", of("renamed"), "wrong", None)
    for kind in ("renamed", "noise", "permuted", "together"):
        goal = 92.0 if kind == "together" else None
        row(f"generated, {kind}: right place", of(f"generated: {kind}"), "right", goal)
    row("generated, together: placed wrong", of("generated: together"), "wrong", None)
    for kind in NEGATIVE:
        row(f"{kind}: refused", of(kind), "refused", 99.0)
    row("no place, all three: refused", lambda case: case.kind in NEGATIVE, "refused", 99.0)
    for size, goals in ((SIZES[0], (15.0, None)), (SIZES[2], (70.0, 200.0))):
        times = {
            name: sorted(1e3 * v.seconds for v in all_ if of("real", size)(v.case))
            for name, all_ in found.items()
        }
        for name, how, goal in (("median", median, goals[0]), ("95th percentile", p95, goals[1])):
            measured = {who: how(one) for who, one in times.items() if one}
            ours = measured.pop("flor", None)
            rows.append(Figure(f"CPU time, real, {size}: {name}", "ms", goal, ours, measured))
    return rows


def share(found: list[Verdict], outcome: str, more_is_better: bool) -> float:
    """Percent, rounded against the one who is measured."""
    percent = 1000 * sum(verdict.outcome == outcome for verdict in found) / len(found)
    return (math.floor if more_is_better else math.ceil)(round(percent, 6)) / 10


def p95(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def write_failures(path: Path, found: list[Verdict]) -> None:
    """What was not right, or placed where there is no place, as JSON lines."""
    with path.open("w") as file:
        for verdict in found:
            case = verdict.case
            if verdict.outcome == ("refused" if case.expected is None else "right"):
                continue
            known = {"kind": case.kind, "size": case.size, **case.origin, "line": case.line}
            came = {"outcome": verdict.outcome, "why": verdict.why, "text": verdict.text}
            asked = {"new": case.new, "old": case.old, "expected": case.expected}
            file.write(json.dumps(known | came | {"sources": asked}) + "\n")


def measure_propagation(chosen: argparse.Namespace) -> list[Figure]:
    warnings.filterwarnings("ignore", category=SyntaxWarning)  # of the files that are parsed
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    try:
        cases = all_cases(chosen.cache, chosen.cases)
    except releases.Offline as error:
        said = f"the cases are made of releases on PyPI, and the network is not there: {error}"
        print(said, file=sys.stderr)
        raise SystemExit(2) from None
    print(f"  {Counter((case.kind, case.size) for case in cases)}", file=sys.stderr)
    found: dict[str, list[Verdict]] = {}
    for turn in range(chosen.rounds):
        for placer in placers(chosen.only):
            if turn and placer.name != "flor":
                continue  # what it answers is known, and its time is far off
            given = few(cases, chosen.peer_cases) if placer.few else cases
            again = list(verdicts(placer, given))
            found[placer.name] = fastest(found.get(placer.name, again), again)
    if chosen.failures and "flor" in found:
        write_failures(chosen.failures, found["flor"])
    return figures(found)


def fastest(one: list[Verdict], other: list[Verdict]) -> list[Verdict]:
    return [min(pair, key=lambda v: v.seconds) for pair in zip(one, other, strict=True)]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__)
    found.add_argument("--cases", type=int, default=CASES, help="real ones; the others follow")
    found.add_argument("--peer-cases", type=int, default=PEER_CASES, help="of each row, for FlorDB")
    found.add_argument("--cache", type=Path, default=releases.CACHE / "propagation")
    found.add_argument("--failures", type=Path, help="write what flor did not get right")
    found.add_argument("--only", choices=["ours", "peers"], help="measure one side")
    found.add_argument("--rounds", type=int, default=1, help="of flor (minimum time counts)")
    return found


def measure(subjects: object = None, rounds: int | None = None) -> list[Figure]:
    return measure_propagation(parser().parse_args(["--rounds", str(rounds or 1)]))


if __name__ == "__main__":
    print(harness.table(measure_propagation(parser().parse_args())))
