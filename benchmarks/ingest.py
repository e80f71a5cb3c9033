"""A run of 1,000,000 records: logging, memory, exit, disk, and the first answer."""

from __future__ import annotations

import harness
from harness import Figure, Metrics, Subject

LOGGING = """
import random
COUNT = 100_000
values = [random.random() for _ in range(COUNT)]
flor.log("first", 1.0)
before = memory_mb("VmRSS")
begun = clock()
for epoch in flor.loop("epoch", range(10)):
    for step in flor.loop("step", range(COUNT)):
        flor.log("loss", values[step])
report(logging=clock() - begun, memory=memory_mb("VmHWM") - before, end=time.time())
"""

ASKING = """
ask = getattr(flor, "sql", None) or flor.query
answer = int(ask("select count(*) as n from logs where value_name = 'loss'")["n"][0])
assert answer == 1_000_000, answer
"""


def record_and_ask(subject: Subject) -> Metrics:
    with harness.project() as root:
        run = harness.run(root, subject, subject.script(LOGGING))
        found = dict(run.figures)
        # What is not logging is start and exit: FlorDB inserts into its database at exit.
        found["exit"] = run.seconds - found["logging"]
        found["disk"] = harness.disk_mb(root.parent)  # FlorDB 3.x keeps its database at home
        ask = subject.script(ASKING)
        found["answer"] = harness.run(root, subject, ask, name="ask.py").seconds
        found["again"] = harness.run(root, subject, ask, name="ask.py").seconds
        found["disk_after"] = harness.disk_mb(root.parent)
        # From the last record to the first answer, whoever does the work in between.
        found["queryable"] = found["exit"] + found["answer"]
        return found


def measure(subjects: list[Subject], rounds: int | None) -> list[Figure]:
    best: dict[str, Metrics] = {}
    for subject in subjects:  # a peer's round takes minutes
        count = rounds or (3 if subject.is_ours else 1)
        best |= harness.rounds([subject], count, record_and_ask)
    million = "1,000,000 records:"
    return [
        harness.figure(f"{million} logging", "s", None, best, "logging"),
        harness.figure(f"{million} memory growth", "MB", 20, best, "memory"),
        harness.figure(f"{million} start and exit", "s", None, best, "exit"),
        harness.figure(f"{million} last record to first answer", "s", 5, best, "queryable"),
        harness.figure(f"{million} second answer, new process", "s", None, best, "again"),
        harness.figure(f"{million} disk, git's objects included", "MB", None, best, "disk"),
        harness.figure(f"{million} disk after the first answer", "MB", None, best, "disk_after"),
    ]


if __name__ == "__main__":
    harness.main(measure)
