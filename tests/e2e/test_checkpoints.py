"""Where a training's checkpoints are taken, and of which state."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Project
from tests.e2e.training import BEGIN, states, taken, train

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
    "in a generator that trains": (
        """
        def fit():
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                yield step
        with flor.checkpointing(weights=weights):
            for result in fit():
                pass
        """,
        EACH_STEP,
    ),
    "in a generator that trains and tells the epoch": (
        """
        def train():
            for step in flor.loop("step", range(2)):
                weights[0] += 1
        def fit():
            for epoch in flor.loop("epoch", range(3)):
                train()
                yield epoch
        with flor.checkpointing(weights=weights):
            for epoch in fit():
                pass
        """,
        EACH_STEP,
    ),
    "in a generator that is driven by hand": (
        """
        def fit():
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    weights[0] += 1
                yield epoch
        with flor.checkpointing(weights=weights):
            trainer = fit()
            first = next(trainer)
            while True:
                if next(trainer, None) is None:
                    break
        """,
        EACH_STEP,
    ),
    "in a generator without a nested loop": (
        """
        def fit():
            for epoch in flor.loop("epoch", range(3)):
                weights[0] += 1
                yield epoch
        with flor.checkpointing(weights=weights):
            trainer = fit()
            next(trainer)
            next(trainer)
            list(trainer)
        """,
        ["epoch 0", "epoch 1", "epoch 2, last"],
    ),
    "a loop in a generator that hands its items on": (
        """
        def batches():
            for batch in flor.loop("step", range(9)):
                yield batch + 1
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for batch in (batch for batch in batches()):
                    weights[0] += 1
                    if batch == 2:
                        break
        """,
        EACH_STEP,
    ),
    "another loop trains in each epoch": (
        """
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop(["odd", "even"][epoch % 2], range(2)):
                    weights[0] += 1
        """,
        ["epoch 0 after odd", "epoch 1 after even", "epoch 2 after odd, last"],
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
                if epoch < 2:
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
    """As in fine-tuning; the state is the trained one from the first epoch on."""
    project.write("train.py", BEGIN + LEARNING.format(order="validate(); train_epoch()"))
    project.python("train.py", "3", FLOR_OVERHEAD="inf")

    assert taken(project) == EACH_STEP
    assert project.python("-c", WEIGHTS, FLOR_DISABLE="1").stdout.split() == ["2", "4", "6"]


def test_two_training_loops_in_an_epoch_are_checkpointed_in_each_epoch(project: Project) -> None:
    """As where two networks are trained in turn."""
    text = LEARNING.format(order="train_epoch('first'); train_epoch('second')")
    text = text.replace("train_epoch():", "train_epoch(name):").replace('loop("step"', "loop(name")
    project.write("train.py", BEGIN + text)
    project.python("train.py", "5", FLOR_OVERHEAD="inf")

    assert taken(project) == [
        *(f"epoch {epoch} after first" for epoch in range(4)),
        *("epoch 4 after first, last", "epoch 4, last"),
    ]
    look = WEIGHTS + 'print(int(flor.load()["model"]["weight"]))'
    assert project.python("-c", look, FLOR_DISABLE="1").stdout.split()[-3:] == ["18", "18", "20"]


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
