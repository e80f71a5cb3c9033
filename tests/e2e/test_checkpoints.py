"""Checkpoints as a training takes them: where, when, and what it feels of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Project

# The number that is trained counts the steps: whatever is restored tells where it was taken.
BEGIN = "import flor, sys\nweights = [0]\n"

STATES = """
import json, sys, flor
for row in flor.checkpoints(sys.argv[1]).to_dict("records"):
    place = {name: int(row[name]) for name in sys.argv[2:]}
    print(json.dumps(flor.load(row["run_id"], **place)["weights"]))
"""


def train(project: Project, body: str, code: int = 0, **env: str) -> str:
    """Run a script with checkpoints of each epoch; what it told on stderr."""
    project.write("train.py", BEGIN + textwrap.dedent(body))
    env = {"FLOR_OVERHEAD": "inf"} | env
    return project.python("train.py", code=code, **env).stderr


def taken(project: Project, run: int = -1) -> list[str]:
    """The checkpoints of a run: "epoch 3 after step, last"."""
    loops = {line["id"]: line for line in project.lines("loop", run)}
    found = []
    for line in project.lines("checkpoint", run):
        places, loop, iteration = [], line["loop"], line["iteration"]
        while loop:
            places.append(f"{loops[loop]['name']} {iteration}")
            loop, iteration = loops[loop]["parent"], loops[loop]["iteration"]
        moment = f" after {line['boundary']}" if line["boundary"] else ""
        found.append(", ".join(reversed(places)) + moment + (", last" if line["final"] else ""))
    return found


def states(project: Project, *loops: str, run: str = "latest") -> list[Any]:
    """The weights in each checkpoint of a run, in the order in which they were taken."""
    out = project.python("-c", STATES, run, *(loops or ("epoch",)), FLOR_DISABLE="1").stdout
    return [json.loads(line) for line in out.splitlines()]


# --- where --------------------------------------------------------------------------------------

EACH_STEP = ["epoch 0 after step", "epoch 1 after step", "epoch 2 after step, last"]
EACH_END = ["epoch 0", "epoch 1", "epoch 2, last"]

PLACES: dict[str, tuple[str, list[str]]] = {
    "at the end of the nested loop": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
        """,
        EACH_STEP,
    ),
    "without a nested loop, at the end of the iteration": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                weights[0] += 1
        """,
        EACH_END,
    ),
    "a plain loop inside is not a nested loop": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in range(2):
                    weights[0] += 1
        """,
        EACH_END,
    ),
    "after break": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(9)):
                    weights[0] += 1
                    if step == 1:
                        break
                else:
                    print("never")
        """,
        EACH_STEP,
    ),
    "after break from within with, try and match": (
        """
        import contextlib
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(9)):
                    weights[0] += 1
                    with contextlib.nullcontext():
                        try:
                            match step:
                                case 1:
                                    break
                        finally:
                            pass
        """,
        EACH_STEP,
    ),
    "not after an exception that the script catches": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                try:
                    for step in flor.loop("step", range(2)):
                        weights[0] += 1
                        if epoch == 1:
                            raise ValueError("loss is nan")
                except ValueError:
                    pass
        """,
        ["epoch 0 after step", "epoch 2 after step, last"],
    ),
    "in a function": (
        """
        def train_epoch():
            for step in flor.loop("step", range(2)):
                weights[0] += 1
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                train_epoch()
        """,
        EACH_STEP,
    ),
    "in a function that breaks": (
        """
        def train_epoch():
            for step in flor.loop("step", range(9)):
                weights[0] += 1
                if step == 1:
                    break
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                train_epoch()
        """,
        EACH_STEP,
    ),
    "in a function that returns from within the loop": (
        """
        def train_epoch():
            for step in flor.loop("step", range(9)):
                weights[0] += 1
                if step == 1:
                    return step
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                train_epoch()
        """,
        EACH_STEP,
    ),
    "in a method": (
        """
        class Trainer:
            def epoch(self):
                for self.step in flor.loop("step", range(2)):
                    weights[0] += 1
            def fit(self):
                with flor.checkpointing(weights=weights):
                    for self.number in flor.loop("epoch", range(3)):
                        self.epoch()
        Trainer().fit()
        """,
        EACH_STEP,
    ),
    "everything in main()": (
        """
        def main():
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(3)):
                    for step in flor.loop("step", range(2)):
                        weights[0] += 1
        if __name__ == "__main__":
            main()
        """,
        EACH_STEP,
    ),
    "a generator like tqdm around the loops": (
        """
        def bar(items):
            for number, item in enumerate(items):
                yield item
        with flor.checkpointing(weights=weights):
            for epoch in bar(flor.loop("epoch", range(3))):
                for step in bar(flor.loop("step", range(2))):
                    weights[0] += 1
        """,
        EACH_STEP,
    ),
    "a generator like tqdm around loops that are left by break": (
        """
        def bar(items):
            for number, item in enumerate(items):
                yield item
        with flor.checkpointing(weights=weights):
            for epoch in bar(flor.loop("epoch", range(9))):
                for step in bar(flor.loop("step", range(9))):
                    weights[0] += 1
                    if step == 1:
                        break
                if epoch == 2:
                    break
        """,
        ["epoch 0 after step", "epoch 1 after step", "epoch 2 after step"],
    ),
    "a generator like tqdm inside the loops": (
        """
        def bar(items):
            yield from items
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", bar(range(3))):
                for step in flor.loop("step", bar(range(2))):
                    weights[0] += 1
        """,
        ["epoch 0 after step", "epoch 1 after step", "epoch 2 after step"],
    ),
    "two main loops one after the other": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("warmup", range(1)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
            for epoch in flor.loop("epoch", range(2)):
                for batch in flor.loop("batch", range(2)):
                    weights[0] += 1
        """,
        ["warmup 0 after step, last", "epoch 0 after batch", "epoch 1 after batch, last"],
    ),
    "two blocks": (
        """
        for size in (1, 2):
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(size)):
                    weights[0] += 1
        """,
        ["epoch 0, last", "epoch 0", "epoch 1, last"],
    ),
    "a block in a loop": (
        """
        for fold in flor.loop("fold", range(2)):
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(2)):
                    for step in flor.loop("step", range(2)):
                        weights[0] += 1
        """,
        [
            *("fold 0, epoch 0 after step", "fold 0, epoch 1 after step, last"),
            *("fold 1, epoch 0 after step", "fold 1, epoch 1 after step, last"),
        ],
    ),
    "a block in a block": (
        """
        other = [0]
        with flor.checkpointing(other=other):
            for outer in flor.loop("outer", range(2)):
                other[0] += 1
                with flor.checkpointing(weights=weights):
                    for epoch in flor.loop("epoch", range(2)):
                        weights[0] += 1
        """,
        [
            *("outer 0, epoch 0", "outer 0, epoch 1, last", "outer 0 after epoch"),
            *("outer 1, epoch 0", "outer 1, epoch 1, last", "outer 1 after epoch, last"),
        ],
    ),
    "three loops deep": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    for layer in flor.loop("layer", range(2)):
                        weights[0] += 1
        """,
        EACH_STEP,
    ),
    "while around everything": (
        """
        rounds = 0
        while rounds < 2:
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(1)):
                    weights[0] += 1
            rounds += 1
        """,
        ["epoch 0, last", "epoch 0, last"],
    ),
    "while inside the block": (
        """
        with flor.checkpointing(weights=weights):
            while weights[0] < 4:
                for epoch in flor.loop("epoch", range(2)):
                    weights[0] += 1
        """,
        ["epoch 0", "epoch 1, last", "epoch 0", "epoch 1, last"],
    ),
    "an empty loop": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", []):
                weights[0] += 1
        """,
        [],
    ),
    "an empty nested loop": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", []):
                    weights[0] += 1
        """,
        EACH_STEP,
    ),
    "no loop at all": (
        """
        with flor.checkpointing(weights=weights):
            weights[0] += 1
        """,
        [],
    ),
    "a loop before the block": (
        """
        for epoch in flor.loop("epoch", range(3)):
            weights[0] += 1
        with flor.checkpointing(weights=weights):
            pass
        """,
        [],
    ),
    "continue": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                if epoch == 1:
                    continue
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                    continue
        """,
        ["epoch 0 after step", "epoch 2 after step, last"],
    ),
    "asynchronous code": (
        """
        import asyncio
        async def main():
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(3)):
                    for step in flor.loop("step", range(2)):
                        await asyncio.sleep(0)
                        weights[0] += 1
        asyncio.run(main())
        """,
        EACH_STEP,
    ),
}


@pytest.mark.parametrize("where", PLACES)
def test_checkpoints_are_taken_where_the_training_loop_ends(project: Project, where: str) -> None:
    body, expected = PLACES[where]

    told = train(project, body)

    assert taken(project) == expected
    assert told == ""


def test_a_training_loop_in_another_module_is_seen(project: Project) -> None:
    project.write(
        "engine.py",
        "import flor\n"
        "def train_epoch(weights):\n"
        "    for step in flor.loop('step', range(9)):\n"
        "        weights[0] += 1\n"
        "        if step == 1:\n"
        "            break\n",
    )
    told = train(
        project,
        """
        import engine
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                engine.train_epoch(weights)
                weights[0] += 100
        """,
    )

    assert told == ""
    assert taken(project) == EACH_STEP
    assert states(project) == [[2], [104], [206]]


# --- validation and training ---------------------------------------------------------------------

LEARNING = """
import torch
net = torch.nn.Linear(1, 1, bias=False)
net.weight.data.zero_()
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)

def train_epoch():
    for step in flor.loop("step", range(2)):
        optimizer.zero_grad()
        (-net.weight.sum()).backward()
        optimizer.step()

def validate():
    with torch.no_grad():
        for batch in flor.loop("batch", range(2)):
            net(torch.ones(1, 1))

with flor.checkpointing(model=net, optimizer=optimizer):
    for epoch in flor.loop("epoch", range(int(sys.argv[1]))):
        {order}
"""
WEIGHTS = """
import sys, flor
for epoch in flor.checkpoints()["epoch"]:
    print(int(flor.load(epoch=int(epoch))["model"]["weight"]))
"""


def test_validation_after_the_training_sees_the_state_of_the_checkpoint(project: Project) -> None:
    project.write("train.py", BEGIN + LEARNING.format(order="train_epoch(); validate()"))
    project.python("train.py", "3", FLOR_OVERHEAD="inf")

    assert taken(project) == EACH_STEP
    assert project.python("-c", WEIGHTS, FLOR_DISABLE="1").stdout.split() == ["2", "4", "6"]


def test_validation_before_the_training_does_not_attract_the_checkpoint(project: Project) -> None:
    """The first iteration shows which loop trains."""
    project.write("train.py", BEGIN + LEARNING.format(order="validate(); train_epoch()"))
    project.python("train.py", "3", FLOR_OVERHEAD="inf")

    assert taken(project)[1:] == EACH_STEP[1:]
    assert project.python("-c", WEIGHTS, FLOR_DISABLE="1").stdout.split()[1:] == ["4", "6"]


def test_the_last_checkpoint_is_of_the_trained_state_even_of_one_epoch(project: Project) -> None:
    """One epoch of a fine-tuning that validates first."""
    project.write("train.py", BEGIN + LEARNING.format(order="validate(); train_epoch()"))
    project.python("train.py", "1", FLOR_OVERHEAD="inf")

    assert project.python("-c", WEIGHTS, FLOR_DISABLE="1").stdout.split()[-1] == "2"


def test_two_training_loops_in_an_epoch_are_checkpointed_in_each_epoch(project: Project) -> None:
    """As where two networks are trained in turn."""
    text = LEARNING.format(order="train_epoch('first'); train_epoch('second')")
    text = text.replace("train_epoch():", "train_epoch(name):").replace('loop("step"', "loop(name")
    project.write("train.py", BEGIN + text)
    project.python("train.py", "5", FLOR_OVERHEAD="inf")

    epochs = [line["iteration"] for line in project.lines("checkpoint")]
    assert sorted(set(epochs)) == [0, 1, 2, 3, 4]


def test_the_last_state_is_taken_though_nothing_tells_which_loop_trains(project: Project) -> None:
    """Only of torch is known which loop changes the objects; here the first one does not."""
    train(
        project,
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for batch in flor.loop("batch", range(2)):
                    pass
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
        """,
    )

    assert states(project)[-1] == [6]


def test_a_training_loop_that_runs_twice_in_the_last_epoch_has_its_last_state_taken(
    project: Project,
) -> None:
    """The epoch's state is taken after the first time."""
    train(
        project,
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(2)):
                for phase in range(2):
                    for step in flor.loop("step", range(2)):
                        weights[0] += 1
        """,
    )

    assert taken(project)[:2] == ["epoch 0 after step", "epoch 1 after step, last"]
    assert states(project)[-1] == [8]


# --- ends ----------------------------------------------------------------------------------------


def test_early_stopping_keeps_the_final_state(project: Project) -> None:
    """The state is that of the end of the loop, with what came after the nested loop."""
    train(
        project,
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(100)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                weights[0] += 100
                if epoch == 3:
                    break
        """,
        FLOR_OVERHEAD="0",
    )

    assert taken(project) == ["epoch 3, last"]
    assert states(project) == [[408]]


def test_returning_from_the_main_loop_keeps_the_final_state(project: Project) -> None:
    train(
        project,
        """
        def main():
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(100)):
                    for step in flor.loop("step", range(2)):
                        weights[0] += 1
                    if epoch == 3:
                        return weights
        main()
        """,
        FLOR_OVERHEAD="0",
    )

    assert taken(project) == ["epoch 3, last"]
    assert states(project) == [[8]]


def test_early_stopping_by_break_in_a_nested_loop_that_is_too_fast_keeps_the_final_state(
    project: Project,
) -> None:
    train(
        project,
        """
        def batches():
            yield from range(2)
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", iter(range(5))):
                for step in flor.loop("step", batches()):
                    weights[0] += 1
        """,
        FLOR_OVERHEAD="0",
    )

    assert taken(project) == ["epoch 4, last"]
    assert states(project) == [[10]]


ENDS = {
    "an exception": ("raise ValueError('loss is nan')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "Ctrl-C": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    "SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "os._exit": ("import os; os._exit(4)", 4),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_listed_stays_however_the_training_ends(project: Project, end: str) -> None:
    how, code = ENDS[end]
    told = train(
        project,
        f"""
        import time
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(9)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                    if epoch == 3:
                        time.sleep(0.3)
                        {how}
        """,
        code=code,
    )

    assert "flor" not in told
    assert taken(project) == ["epoch 0 after step", "epoch 1 after step", "epoch 2 after step"]
    assert states(project) == [[2], [4], [6]]


def test_what_is_pending_when_a_training_fails_is_written(project: Project) -> None:
    """20 MB that the disk has not seen yet when the exception is raised."""
    train(
        project,
        """
        import numpy as np
        big = np.zeros(2_500_000)
        with flor.checkpointing(weights=weights, big=big):
            for epoch in flor.loop("epoch", range(9)):
                for step in flor.loop("step", range(2)):
                    big += 1
                    weights[0] += 1
                if epoch == 1:
                    raise ValueError("loss is nan")
        """,
        code=1,
    )

    assert taken(project) == ["epoch 0 after step", "epoch 1 after step"]


def test_a_training_in_a_thread_is_checkpointed_or_it_is_told(project: Project) -> None:
    told = train(
        project,
        """
        import threading
        def fit():
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(2)):
                    weights[0] += 1
        thread = threading.Thread(target=fit)
        thread.start()
        thread.join()
        """,
    )

    assert taken(project) == ["epoch 0", "epoch 1, last"] or "thread" in told


def test_commit_within_the_block_ends_the_run_and_not_the_training(project: Project) -> None:
    told = train(
        project,
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                if epoch == 1:
                    flor.commit()
        flor.log("weights", weights)
        print(weights)
        """,
    )

    assert "Traceback" not in told
    assert taken(project, 0)[:2] == ["epoch 0 after step", "epoch 1 after step"]


# --- where there is no file ----------------------------------------------------------------------

CELL = """
import flor
weights, total = [0], 0
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", range(9)):
        for step in flor.loop("step", range(9)):
            weights[0] += 1
            total += 1
            if step == 1:
                break
        if epoch == 2:
            break

print(weights)
"""
RUN_CELL = """
import linecache, sys
name = "<ipython-input-1>"
text = open("cell.txt").read()
linecache.cache[name] = (len(text), None, text.splitlines(True), name)
exec(compile(text, name, "exec"))
"""


def test_code_without_a_source_is_checkpointed_without_variables_and_it_is_told(
    project: Project,
) -> None:
    done = project.python("-c", CELL, FLOR_OVERHEAD="inf")

    assert done.stdout == "[6]\n"
    assert done.stderr.count("flor: ") == 1
    assert "source" in done.stderr
    assert states(project)[-1] == [6]


def test_code_from_standard_input_keeps_its_final_state(project: Project) -> None:
    done = subprocess.run(
        [sys.executable, "-"],
        cwd=project.root,
        env=project.environment,
        input=CELL,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "[6]\n"
    assert states(project)[-1] == [6]


def test_a_cell_of_a_notebook_has_a_source(project: Project) -> None:
    project.write("cell.txt", CELL)
    project.write("kernel.py", RUN_CELL)
    done = project.python("kernel.py", FLOR_OVERHEAD="inf")

    assert done.stderr == ""
    assert taken(project) == [*EACH_STEP[:2], "epoch 2 after step"]
    look = "import flor; print(flor.load(epoch=1)['total'])"
    assert project.python("-c", look, FLOR_DISABLE="1").stdout == "4\n"


def test_a_script_that_is_edited_while_it_imports_loses_variables_only(project: Project) -> None:
    """An editor saves while the training starts; it stops early, by break."""
    told = train(
        project,
        """
        text = open(__file__).read()
        open(__file__, "w").write("# a new line\\n" + text)
        total = 0
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(9)):
                for step in flor.loop("step", range(9)):
                    weights[0] += 1
                    total += 1
                    if step == 1:
                        break
                if epoch == 2:
                    break
        """,
    )

    assert told.count("flor: ") == 1
    assert "not what runs" in told
    assert states(project)[-1] == [6]


# --- when ----------------------------------------------------------------------------------------

SHORT = """
with flor.checkpointing(weights=weights):
    for epoch in flor.loop("epoch", range(200)):
        for step in flor.loop("step", range(2)):
            weights[0] += 1
"""


def test_an_overhead_of_zero_takes_the_last_state_only(project: Project) -> None:
    train(project, SHORT, FLOR_OVERHEAD="0")

    assert taken(project) == ["epoch 199 after step, last"]


def test_short_epochs_are_skipped_and_the_last_never(project: Project) -> None:
    project.write("train.py", BEGIN + SHORT)
    project.python("train.py")

    assert len(taken(project)) < 20
    assert taken(project)[-1] in ("epoch 199 after step, last", "epoch 199, last")
    assert states(project)[-1] == [400]


def test_infinite_overhead_takes_each(project: Project) -> None:
    train(project, SHORT.replace("200", "40"))

    assert len(taken(project)) == 40
    assert states(project) == [[2 * (epoch + 1)] for epoch in range(40)]


def test_a_setting_in_the_project_counts(project: Project) -> None:
    project.write("flor.toml", "overhead = 0\n")
    project.write("train.py", BEGIN + SHORT)
    project.python("train.py")

    assert taken(project) == ["epoch 199 after step, last"]


def test_nothing_is_taken_where_flor_is_off(project: Project) -> None:
    train(project, SHORT, FLOR_DISABLE="1")

    assert not (project.root / ".flor").exists()


def test_epochs_are_skipped_rather_than_the_training_waits_for_the_disk(project: Project) -> None:
    """80 MB in each epoch of 20 ms: writing takes longer than an epoch."""
    told = train(
        project,
        """
        import numpy as np, time
        big = np.random.default_rng(0).random(10_000_000)
        with flor.checkpointing(big=big):
            for epoch in flor.loop("epoch", range(60)):
                began = time.perf_counter()
                for step in flor.loop("step", range(2)):
                    time.sleep(0.01)
                    big[step::1000] += epoch
        """,
        FLOR_OVERHEAD="1",
    )
    numbers = [line["iteration"] for line in project.lines("checkpoint")]
    waited = sum(line["stall_seconds"] for line in project.lines("checkpoint"))
    wrote = sum(line["write_seconds"] for line in project.lines("checkpoint"))

    assert told == ""
    assert len(numbers) < 40
    assert numbers[-1] == 59
    assert waited < wrote


# --- never harm ----------------------------------------------------------------------------------

NUMBERS = """
import os, random
random.seed(3)
weights = [0.0] * 1000
with flor.checkpointing(weights=weights, **globals().get("more", {})):
    for epoch in flor.loop("epoch", range(4)):
        for step in flor.loop("step", range(5)):
            weights[step] += random.random()
        print(epoch, sum(weights).hex())
print("done", random.random().hex())
sys.exit(7)
"""

HARMS = {
    "a state_dict that raises": """
class Bad:
    def state_dict(self): raise RuntimeError("no state for you")
    def load_state_dict(self, state): pass
more = {"bad": Bad()}
""",
    "a state_dict that returns garbage": """
class Bad:
    def state_dict(self): return lambda: 3
    def load_state_dict(self, state): pass
more = {"bad": Bad()}
""",
    "a state_dict that exits": """
class Bad:
    def state_dict(self): raise RecursionError("deep")
    def load_state_dict(self, state): pass
more = {"bad": Bad()}
""",
    "objects that hold no state": """
import threading
more = {"none": None, "number": 3, "text": "a" * 10, "function": lambda: 3, "module": sys,
        "type": dict, "file": open(__file__), "lock": threading.Lock(), "stream": sys.stdout}
""",
    "an object that cannot be asked for anything": """
class Bad:
    def __getattr__(self, name): raise RuntimeError("do not ask")
    def __eq__(self, other): raise RuntimeError("do not compare")
    def __hash__(self): raise RuntimeError("do not hash")
    def __bool__(self): raise RuntimeError("do not judge")
    def __repr__(self): raise RuntimeError("do not print")
    def __len__(self): raise RuntimeError("do not count")
more = {"bad": Bad(), "inside": [Bad()]}
""",
    "a list that holds itself": "ring = []; ring.append(ring)\nmore = {'ring': ring}\n",
    "data nested very deeply": """
deep = []
for _ in range(5000): deep = [deep]
more = {"deep": deep}
""",
    "half a surrogate pair": "more = {'text': ['\\ud800'], 'keys': {'\\udfff': 1, (1, 'a'): 2}}\n",
    "numbers of all kinds": "more = {'odd': [float('nan'), float('inf'), -0.0, 10**400, 1j, True]}\n",
}


@pytest.mark.parametrize("harm", HARMS)
def test_training_goes_on_whatever_the_objects_are(project: Project, harm: str) -> None:
    project.write("train.py", BEGIN + HARMS[harm] + NUMBERS)
    without = project.python("train.py", code=7, FLOR_DISABLE="1")

    recorded = project.python("train.py", code=7, FLOR_OVERHEAD="inf")

    assert recorded.stdout == without.stdout
    assert "Traceback" not in recorded.stderr
    assert len(recorded.stderr.splitlines()) == len(set(recorded.stderr.splitlines()))
    look = "import flor; print(len(flor.load(epoch=3)['weights']))"
    assert project.python("-c", look, FLOR_DISABLE="1").stdout == "1000\n"


def test_training_goes_on_where_objects_cannot_be_written(project: Project) -> None:
    """As on a disk that is read-only: a file is where the folder would be."""
    project.write("train.py", BEGIN + NUMBERS)
    without = project.python("train.py", code=7, FLOR_DISABLE="1").stdout
    project.write(".flor/objects", "not a folder")

    done = project.python("train.py", code=7, FLOR_OVERHEAD="inf")

    assert done.stdout == without
    assert 1 <= done.stderr.count("flor: ") <= 2
    assert "objects" in done.stderr
    assert taken(project) == []
    assert project.runs()[-1]["status"] == "failed"


def test_training_goes_on_where_the_disk_is_full(project: Project) -> None:
    """A limit on the size of files stands for the disk: the write fails in the middle."""
    project.write(
        "train.py",
        BEGIN
        + "import resource, signal\n"
        + "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        + "resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))\n"
        + "import numpy as np\n"
        + "more = {'big': np.random.default_rng(0).random(1_000_000)}\n"
        + NUMBERS,
    )
    without = project.python("train.py", code=7, FLOR_DISABLE="1").stdout

    done = project.python("train.py", code=7, FLOR_OVERHEAD="inf")

    assert done.stdout == without
    assert 1 <= done.stderr.count("flor: ") <= 2
    assert taken(project) == []
    left = [path for path in (project.root / ".flor/objects").rglob("*") if path.is_file()]
    assert left == []


def test_ten_thousand_small_tensors_are_few_files(project: Project) -> None:
    train(
        project,
        """
        import torch
        many = [torch.zeros(3) for _ in range(10_000)]
        with flor.checkpointing(many=many):
            for epoch in flor.loop("epoch", range(2)):
                for tensor in many:
                    tensor += 1
        """,
    )
    files = [path for path in (project.root / ".flor/objects").rglob("*") if path.is_file()]
    look = "import flor; s = flor.load(epoch=0)['many']; print(len(s), {float(x.sum()) for x in s})"

    assert len(files) < 20
    assert project.python("-c", look, FLOR_DISABLE="1").stdout == "10000 {3.0}\n"


FORKS = {
    "os.fork": """
        pid = os.fork()
        if pid == 0:
            flor.log("child", epoch)
            os._exit(0)
        os.waitpid(pid, 0)
    """,
    "a child that goes through the loop's rest": """
        pid = os.fork()
        if pid == 0:
            for step in flor.loop("inner", range(2)):
                big[:] = -1
            sys.exit(0)
        os.waitpid(pid, 0)
    """,
    "a pool of forked processes": """
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, range(4)) == [0, 1, 2, 3]
    """,
    "a pool of spawned processes": """
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(abs, range(4)) == [0, 1, 2, 3]
    """,
    "subprocess": """
        subprocess.run([sys.executable, "-c", "import flor; flor.log('x', 1)"], check=True)
    """,
    "threads": """
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """,
}


@pytest.mark.parametrize("fork", FORKS)
def test_processes_and_threads_beside_the_writing_do_no_harm(project: Project, fork: str) -> None:
    """16 MB are being written while they start."""
    body = textwrap.indent(textwrap.dedent(FORKS[fork]), " " * 12)
    project.write(
        "train.py",
        f"""
import multiprocessing, os, subprocess, sys, threading
import numpy as np, flor

def work():
    for item in flor.loop("item", range(3)):
        flor.log("seen", item)

def main():
    big = np.zeros(2_000_000)
    with flor.checkpointing(big=big):
        for epoch in flor.loop("epoch", range(4)):
            for step in flor.loop("step", range(2)):
                big[:] = np.arange(big.size) + epoch
{body}
        print("end", flush=True)

if __name__ == "__main__":
    main()
""",
    )
    done = project.python("train.py", FLOR_OVERHEAD="inf")

    assert done.stdout == "end\n"
    assert done.stderr == ""
    assert [line["iteration"] for line in project.lines("checkpoint", 0)] == [0, 1, 2, 3]
    run_id = project.journals()[0][0]["run_id"]
    check = (
        f"import flor; print([float(flor.load({run_id!r}, epoch=e)['big'][7]) for e in range(4)])"
    )
    assert project.python("-c", check, FLOR_DISABLE="1").stdout == "[7.0, 8.0, 9.0, 10.0]\n"
    assert project.python("-m", "flor", "objects", "--verify").stderr == ""


def test_a_signal_handler_that_trains_on_keeps_all_checkpoints(project: Project) -> None:
    """SIGTERM asks to stop after this epoch, as a scheduler of jobs does."""
    project.write(
        "train.py",
        BEGIN
        + textwrap.dedent("""
        import signal, time
        asked = False
        def stop(*_):
            global asked
            asked = True
        signal.signal(signal.SIGTERM, stop)
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(10_000)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                    time.sleep(0.005)
                print(epoch, flush=True)
                if asked:
                    break
        """),
    )
    process = project.start("train.py", FLOR_OVERHEAD="0")
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        printed = [process.stdout.readline() for _ in range(5)]
        process.send_signal(signal.SIGTERM)
        printed += process.stdout.readlines()
        told = process.stderr.read()

    last = int(printed[-1])
    assert (process.returncode, told) == (0, "")
    assert states(project) == [[2 * last + 2]]


def test_checkpoints_can_be_read_while_the_training_goes_on(project: Project) -> None:
    project.write(
        "train.py",
        BEGIN
        + textwrap.dedent("""
        import time
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(10_000)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                    time.sleep(0.01)
                print(epoch, flush=True)
        """),
    )
    process = project.start("train.py", FLOR_OVERHEAD="inf")
    assert process.stdout is not None
    for _ in range(6):
        process.stdout.readline()

    look = "import flor; s = flor.load(epoch=2); print(s['weights'], s.place)"
    out = project.python("-c", look, FLOR_DISABLE="1").stdout
    assert out == "[6] {'epoch': 2}\n"
    assert "epoch 2" in project.flor("checkpoints")

    process.kill()
    process.communicate()
    assert "epoch 2" in project.flor("checkpoints")


def test_a_training_that_outgrows_the_limit_is_not_disturbed(project: Project) -> None:
    """Tidying runs on its own; the newest checkpoint stays."""
    told = train(
        project,
        """
        import numpy as np, time
        big = np.zeros(250_000)
        with flor.checkpointing(big=big):
            for epoch in flor.loop("epoch", range(10)):
                for step in flor.loop("step", range(2)):
                    big[:] = np.arange(big.size) * epoch
                time.sleep(0.05)
        """,
        FLOR_OBJECTS_LIMIT_GB="0.005",
    )
    look = "import flor; print(float(flor.load()['big'][2]))"

    assert told == ""
    assert project.python("-c", look, FLOR_DISABLE="1").stdout == "18.0\n"


def wait_for(path: Path, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.02)


def test_two_trainings_at_once_do_not_mix(project: Project) -> None:
    body = """
    import numpy as np, os, time
    seed, other = int(sys.argv[1]), 1 - int(sys.argv[1])
    shared, own = np.arange(100_000.0), np.full(100_000, float(seed))
    open(f"ready{seed}", "w").close()
    while not os.path.exists(f"ready{other}"):
        time.sleep(0.01)
    with flor.checkpointing(shared=shared, own=own):
        for epoch in flor.loop("epoch", range(20)):
            for step in flor.loop("step", range(2)):
                own += 2
    """
    project.write("train.py", BEGIN + textwrap.dedent(body))
    both = [project.start("train.py", str(seed), FLOR_OVERHEAD="inf") for seed in (0, 1)]

    assert [process.communicate(timeout=60) for process in both] == [("", ""), ("", "")]
    for run in (0, 1):
        run_id = project.journals()[run][0]["run_id"]
        seed = float(project.journals()[run][0]["argv"][1])
        look = f"import flor; print([float(flor.load({run_id!r}, epoch=e)['own'][9]) for e in (0, 19)])"
        out = project.python("-c", look, FLOR_DISABLE="1").stdout
        assert out == f"{[seed + 4, seed + 80]}\n"
