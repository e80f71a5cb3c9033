"""How trainings with checkpoints end, code without a file, and when checkpoints are taken."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.e2e.conftest import Project
from tests.e2e.training import BEGIN, states, taken, train

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
    assert taken(project) == [f"epoch {epoch} after step" for epoch in range(3)]
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


LATE = {
    "an array": "weights = np.zeros(1000)\ndef train(): weights[...] += 1\nlate = train",
    "a list": "weights = [1]\ndef train(): weights.append(7)\nlate = train",
    "an average by hand": (
        "weights = torch.zeros(70000)\n"
        "def train(): weights.add_(1)\n"
        "def late(): weights.data.mul_(.9)"
    ),
    "statistics": (
        "weights = torch.nn.BatchNorm1d(3)\n"
        "def train(): torch.nn.init.normal_(weights.weight)\n"
        "def late(): weights(torch.randn(9, 3))"
    ),
}


@pytest.mark.parametrize("what", LATE)
def test_the_last_state_is_the_one_at_the_end(project: Project, what: str) -> None:
    """What changes behind the nested loop, whoever does not see that, is in the last checkpoint."""
    pytest.importorskip("torch")
    project.write(
        "train.py",
        f"import flor, torch, numpy as np\n{LATE[what]}\n"
        "def shown(x): return str(x.state_dict() if hasattr(x, 'state_dict') else x)\n"
        "with flor.checkpointing(weights=weights):\n"
        "    for epoch in flor.loop('epoch', range(3)):\n"
        "        for step in flor.loop('step', range(2)):\n"
        "            train()\n"
        "        late()\n"
        "end = shown(weights)\n"
        "flor.load(weights=weights)\n"
        "print(shown(weights) == end)\n",
    )

    assert project.python("train.py", FLOR_OVERHEAD="inf").stdout == "True\n"
    assert taken(project)[-2:] == ["epoch 2 after step, last", "epoch 2, last"]


def test_what_does_not_change_any_more_is_taken_once(project: Project) -> None:
    train(
        project,
        """
        weights, other = [0] * 5000, {"a": 1}
        with flor.checkpointing(weights=weights, other=other):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    weights[step] += 1
                for row in flor.loop("validation", range(2)):
                    sum(weights)
        """,
    )

    assert taken(project)[-1] == "epoch 2 after step, last"
