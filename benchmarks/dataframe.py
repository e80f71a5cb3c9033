"""`flor.dataframe` over many records (1M in 100 runs) and many runs (30,000 of 100 columns)."""

from __future__ import annotations

import copies
import harness
import peers
from harness import Figure, Metrics, Subject

RUNS, WIDE_RUNS, COLUMNS = 100, 30_000, 100

INNER = """
import random
for epoch in flor.loop("epoch", range(10)):
    for step in flor.loop("step", range(333)):
        for name in ("loss", "accuracy", "norm"):
            flor.log(name, random.random())
"""

WIDE = """
import random
for number in range(100):
    flor.log(f"metric_{number}", random.random())
"""

ASK = """
begun = clock()
frame = flor.dataframe({names})
first = clock() - begun
begun = clock()
frame = flor.dataframe({names})
assert frame.shape[0] == {rows}, frame.shape
typed = sum(str(kind).lower().startswith("float") for kind in frame.dtypes)
report(first=first, second=clock() - begun, typed=typed, memory=memory_mb("VmHWM"))
"""

INGEST = """
begun = clock()
flor.sql("select count(*) from runs")
report(ingest=clock() - begun)
"""

MLFLOW_WIDE = """
import random
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
client = MlflowClient("sqlite:///mlflow.db")
run_id = client.create_run("0").info.run_id
metrics = [Metric(f"metric_{number}", random.random(), 0, 0) for number in range(100)]
client.log_batch(run_id, metrics)
client.set_terminated(run_id)
"""

MLFLOW_ASK = """
flor.set_tracking_uri("sqlite:///mlflow.db")
begun = clock()
rows = len(flor.search_runs(["0"], max_results=50_000))
assert rows == {rows}, rows
report(first=clock() - begun, memory=memory_mb("VmHWM"))
"""


def ask(names: list[str], rows: int) -> str:
    return ASK.replace("{names}", ", ".join(map(repr, names))).replace("{rows}", str(rows))


def many_records(subject: Subject) -> Metrics:
    with harness.project() as root:
        harness.run(root, subject, subject.script(INNER))
        (copies.copy_journal if subject.is_ours else copies.copy_flordb)(root, RUNS)
        found: Metrics = {}
        if subject.is_ours:
            found |= harness.run(root, subject, subject.script(INGEST), name="ask.py").figures
        question = subject.script(ask(["loss", "accuracy", "norm"], RUNS * 3330))
        found |= harness.run(root, subject, question, name="ask.py").figures
        later = harness.run(root, subject, question, name="ask.py").figures
        return found | {"later": later["first"]}


def many_runs(subject: Subject) -> Metrics:
    with harness.project() as root:
        if subject.module == "mlflow":
            harness.run(root, subject, subject.script(MLFLOW_WIDE))
            copies.copy_mlflow(root, WIDE_RUNS)
            question = subject.script(MLFLOW_ASK.replace("{rows}", str(WIDE_RUNS)))
            return harness.run(root, subject, question, name="ask.py").figures
        harness.run(root, subject, subject.script(WIDE))
        copies.copy_journal(root, WIDE_RUNS)
        found = harness.run(root, subject, subject.script(INGEST), name="ask.py").figures
        names = [f"metric_{number}" for number in range(COLUMNS)]
        question = subject.script(ask(names, WIDE_RUNS))
        found |= harness.run(root, subject, question, name="ask.py").figures
        later = harness.run(root, subject, question, name="ask.py").figures
        return found | {"later": later["first"]}


def measure(subjects: list[Subject], rounds: int | None) -> list[Figure]:
    records = harness.rounds(subjects, rounds or 2, many_records)
    wide = [subject for subject in subjects if subject.is_ours]
    if len(wide) < len(subjects):
        wide.append(Subject(peers.MLFLOW.name, peers.install(peers.MLFLOW), "mlflow"))
    runs = harness.rounds(wide, 1, many_runs)
    for found in (*records.values(), *runs.values()):
        found.setdefault("later", found["first"])  # MLflow keeps nothing in between
    tall, wide_name = "3 columns of 1M records in 100 runs:", "30,000 runs of 100 columns:"
    return [
        harness.figure(f"{tall} dataframe, first time", "s", 0.6, records, "first"),
        harness.figure(f"{tall} dataframe, later process", "s", 0.6, records, "later"),
        harness.figure(f"{tall} dataframe, same process", "s", 0.6, records, "second"),
        harness.figure(f"{tall} float columns", "", 3, records, "typed", more_is_better=True),
        harness.figure(f"{tall} ingest", "s", None, ours_only(records), "ingest"),
        harness.figure(f"{wide_name} dataframe, first time", "s", 5, runs, "first"),
        harness.figure(f"{wide_name} dataframe, later process", "s", 5, runs, "later"),
        harness.figure(f"{wide_name} peak memory", "MB", None, runs, "memory"),
        harness.figure(f"{wide_name} ingest", "s", None, ours_only(runs), "ingest"),
    ]


def ours_only(best: dict[str, Metrics]) -> dict[str, Metrics]:
    return {name: found for name, found in best.items() if name == harness.OURS.name}


if __name__ == "__main__":
    harness.main(measure)
