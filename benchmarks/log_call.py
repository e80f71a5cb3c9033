"""What one `flor.log` and one `flor.loop` iteration cost, and what survives `kill -9`."""

from __future__ import annotations

import harness
from harness import Figure, Metrics, Subject

CALLS = """
import random
ROUNDS, COUNT = 5, 5000
values = [random.random() for _ in range(COUNT)]

def per_iteration(begun):
    return (clock() - begun) / COUNT * 1e6

logged = empty = outer = float("inf")
for epoch in flor.loop("epoch", range(ROUNDS)):
    begun = clock()
    for step in flor.loop("empty", range(COUNT)):
        pass
    empty = min(empty, per_iteration(begun))
    begun = clock()
    for step in flor.loop("step", range(COUNT)):
        flor.log("loss", values[step])
    logged = min(logged, per_iteration(begun))
begun = clock()
for step in flor.loop("alone", range(COUNT)):
    pass
outer = per_iteration(begun)
begun = clock()
for step in range(COUNT):
    flor.log("top", values[step])
top = per_iteration(begun)
report(log=logged - empty, nested_loop=empty, outer_loop=outer, log_without_loop=top)
"""

KILLED = """
import signal
for epoch in flor.loop("epoch", range(10)):
    for step in flor.loop("step", range(100)):
        flor.log("loss", 0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""

SURVIVORS = """
try:
    survivors = len(flor.dataframe("loss"))
except Exception as error:  # FlorDB raises when there is nothing
    print(repr(error))
    survivors = 0
report(survivors=survivors)
"""


def time_calls(subject: Subject) -> Metrics:
    with harness.project() as root:
        return harness.run(root, subject, subject.script(CALLS)).figures


def count_survivors(subject: Subject) -> Metrics:
    with harness.project() as root:
        harness.run(root, subject, subject.script(KILLED), expect=-9)
        return harness.run(root, subject, subject.script(SURVIVORS), name="ask.py").figures


def measure(subjects: list[Subject], rounds: int | None) -> list[Figure]:
    calls = harness.rounds(subjects, rounds or 5, time_calls)
    kills = harness.rounds(subjects, 1, count_survivors)
    return [
        harness.figure("`flor.log` of a float in two nested loops", "µs", 4, calls, "log"),
        harness.figure("`flor.log` outside loops", "µs", None, calls, "log_without_loop"),
        harness.figure("empty `flor.loop` iteration, nested", "µs", 1, calls, "nested_loop"),
        harness.figure("empty `flor.loop` iteration, outermost", "µs", 1, calls, "outer_loop"),
        harness.figure(
            "of 1,000 records, left after `kill -9`",
            "",
            1000,
            kills,
            "survivors",
            more_is_better=True,
        ),
    ]


if __name__ == "__main__":
    harness.main(measure)
