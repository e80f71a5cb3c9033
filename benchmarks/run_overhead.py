"""Start and exit of a run with 1,000 records, over the bare script, in a project of 200 files."""

from __future__ import annotations

from pathlib import Path

import harness
from harness import Figure, Metrics, Subject

LOOPS = """
for epoch in flor.loop("epoch", range(10)):
    for step in flor.loop("step", range(100)):
        flor.log("loss", 0.5 / (step + 1))
"""

BARE = """
class flor:
    loop = staticmethod(lambda name, items: items)
    log = staticmethod(lambda name, value: value)
"""


def files() -> dict[str, str]:
    """200 files of about 4 KB in 20 folders."""
    line = "    return [item * {} for item in items if item % 7]  # {:040d}\n"
    return {
        f"package_{number % 20}/module_{number}.py": "".join(
            f"def function_{i}(items):\n" + line.format(number, i) for i in range(30)
        )
        for number in range(200)
    }


def time_runs(subject: Subject) -> Metrics:
    with harness.project(files()) as root:
        bare = subject.script(BARE + LOOPS, imports=False)
        recorded = subject.script(LOOPS)
        found = {"bare": harness.run(root, subject, bare, name="bare.py").seconds}
        if subject.is_ours:
            off = harness.run(root, subject, recorded, FLOR_DISABLE="1")
            found["disabled"] = off.seconds
        found["first"] = harness.run(root, subject, recorded).seconds
        found["same"] = harness.run(root, subject, recorded).seconds
        edit(root)
        found["edited"] = harness.run(root, subject, recorded).seconds
        return found


def edit(root: Path) -> None:
    module = root / "package_3" / "module_3.py"
    module.write_text(module.read_text() + "# edited\n")


def measure(subjects: list[Subject], rounds: int | None) -> list[Figure]:
    best = harness.rounds(subjects, rounds or 5, time_runs)
    for found in best.values():
        for name in ("disabled", "first", "same", "edited"):
            found[name] = max(0.0, found.get(name, found["bare"]) - found["bare"])
    figures = [
        harness.figure("start + exit of a run, first version", "s", 0.25, best, "first"),
        harness.figure("the same, one file edited", "s", 0.25, best, "edited"),
        harness.figure("the same, code unchanged", "s", 0.25, best, "same"),
    ]
    if harness.OURS.name in best:
        off = best[harness.OURS.name]["disabled"]
        figures.append(Figure("the same, `FLOR_DISABLE=1`", "s", None, off))
    return figures


if __name__ == "__main__":
    harness.main(measure)
