"""Which variables a checkpoint does not hold, and that looking for them does nothing."""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.e2e.conftest import Project
from tests.e2e.training import BEGIN, train, variables

# --- not held -----------------------------------------------------------------------------------


def test_code_modules_and_large_batches_are_not_held_and_nothing_is_told(project: Project) -> None:
    told = train(
        project,
        """
        import logging, math, sys
        import numpy as np
        module, function, kind, logger = math, len, dict, logging.getLogger("x")
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(2)):
                for step in flor.loop("step", range(3)):
                    x = np.random.rand(500_000)
                    module, function, kind = sys, (lambda: step), list
                    def helper(): return step
                    class Local: pass
                    logger = logging.getLogger(str(step))
                    stream = sys.stderr
                    y = x.sum()
        print(module, function(), kind, logger, helper(), Local, stream)
        """,
    )
    held = project.python("-c", "import flor; print(*flor.load())", FLOR_DISABLE="1").stdout

    assert told == ""
    assert set(held.split()) == {"weights", "epoch", "step", "y"}
    assert project.lines("checkpoint")[-1]["size_bytes"] < 100_000


def test_what_cannot_be_captured_is_named_once_and_the_rest_is_held(project: Project) -> None:
    told = train(
        project,
        """
        import threading
        class Holder:
            def __init__(self): self.lock, self.n = threading.Lock(), 0
        def numbers():
            yield from range(100)
        source, stream, holder, total = numbers(), iter([1] * 100), Holder(), 0
        inside = {"source": numbers(), "n": 0}
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(4)):
                for step in flor.loop("step", range(3)):
                    total += next(source) + next(stream)
                    holder.n += 1
                    inside["n"] += next(inside["source"])
        print(total, holder, inside)
        """,
    )

    assert variables_of(told) == sorted(set(variables_of(told)))
    assert {"source", "stream"} <= set(variables_of(told))
    state = project.python(
        "-c",
        "import flor; s = flor.load(epoch=1); print(s['total'], s.get('holder.n'), *s.missing)",
        FLOR_DISABLE="1",
    ).stdout
    assert state.startswith("21 6 ")
    assert "source" in state
    assert re.search(
        r"^not held +source: is an iterator", project.flor("checkpoints"), re.MULTILINE
    )


def variables_of(told: str) -> list[str]:
    """The names in the warnings about what is not held, sorted."""
    return sorted(re.findall(r"^flor: checkpoints do not hold (\S+):", told, re.MULTILINE))


def test_an_open_file_that_is_written_in_the_loop_is_left_alone(project: Project) -> None:
    """A log of one's own is common; it is no part of the state, and no reason to complain."""
    told = train(
        project,
        """
        import csv
        file = open("log.csv", "w")
        writer = csv.writer(file)
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(2)):
                for step in flor.loop("step", range(3)):
                    writer.writerow([epoch, step])
                    file.flush()
        file.close()
        """,
    )

    assert told == ""
    assert (project.root / "log.csv").read_text().splitlines() == [
        f"{epoch},{step}" for epoch in (0, 1) for step in (0, 1, 2)
    ]


# --- looking does nothing -----------------------------------------------------------------------


# Each would be seen: it prints.
LOUD = {
    "attributes that are not there": """
class Loud:
    def __getattr__(self, name): print("asked for", name); raise AttributeError(name)
""",
    "attributes that are computed": """
class Loud:
    @property
    def state(self): print("state"); return 1
    @property
    def state_dict(self): print("state_dict"); return None
    def __setattr__(self, name, value): print("set")
    def __dir__(self): print("dir"); return []
""",
    "comparisons and conversions": """
class Loud:
    def __eq__(self, other): print("eq"); return True
    def __hash__(self): print("hash"); return 3
    def __bool__(self): print("bool"); return True
    def __len__(self): print("len"); return 2
    def __iter__(self): print("iter"); return iter([])
    def __getitem__(self, key): print("item"); raise IndexError
    def __repr__(self): print("repr"); return ""
    def __float__(self): print("float"); return 0.0
    def __copy__(self): print("copy"); return self
    def __deepcopy__(self, memo): print("deepcopy"); return self
""",
    "a dictionary of one's own": """
class Loud(dict):
    def keys(self): print("keys"); return super().keys()
    def __iter__(self): print("iter"); return super().__iter__()
    def __len__(self): print("len"); return super().__len__()
    def __getitem__(self, key): print("item"); return super().__getitem__(key)
""",
}


@pytest.mark.parametrize("what", LOUD)
def test_no_code_of_the_users_runs_when_variables_are_read(project: Project, what: str) -> None:
    body = """
    thing, rows, holder, number = Loud(), [], {}, 0
    def work():
        global thing, number
        for step in flor.loop("step", range(2)):
            number += 1
            thing = thing
            rows[:] = [thing]
            holder["thing"] = thing
    with flor.checkpointing(weights=weights):
        for epoch in flor.loop("epoch", range(2)):
            work()
    print("end", number)
    """
    project.write("train.py", BEGIN + LOUD[what] + textwrap.dedent(body))

    assert project.python("train.py", FLOR_OVERHEAD="inf").stdout == "end 4\n"


def test_objects_of_ones_own_are_asked_for_their_state_only_where_it_is_documented(
    project: Project,
) -> None:
    """`state_dict` of what has it, once for each checkpoint, and once more at the loop's end, to see
    whether it has changed since."""
    project.write(
        "train.py",
        BEGIN
        + textwrap.dedent("""
        class Net:
            def __init__(self): self.asked = 0
            def state_dict(self):
                self.asked += 1
                return {"asked": True}
            def load_state_dict(self, state): raise RuntimeError
        net, carried = Net(), Net()
        with flor.checkpointing(net=net):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    carried = carried
        print(net.asked, carried.asked)
        """),
    )

    assert project.python("train.py", FLOR_OVERHEAD="inf").stdout == "4 4\n"
    assert project.python("train.py", FLOR_OVERHEAD="0").stdout in ("1 1\n", "2 2\n")


LOCALS = """
import gc, sys, weakref
class Batch: pass
def main():
    total = 0
    names = locals()
    with flor.checkpointing(weights=weights):
        for epoch in flor.loop("epoch", range(3)):
            for step in flor.loop("step", range(2)):
                total += 1
            print(sorted(names), names.get("total"), flush=True)
    return total
def other():
    exec("made = 1")
    with flor.checkpointing(weights=weights):
        for epoch in flor.loop("epoch", range(2)):
            made = epoch
            print(eval("made"), sorted(vars()), flush=True)
def frames():
    gone, total = [], 0
    with flor.checkpointing(weights=weights):
        for epoch in flor.loop("epoch", range(3)):
            for step in flor.loop("step", range(2)):
                batch = Batch()
                gone.append(weakref.ref(batch))
                total += 1
            del batch
            print([ref() is None for ref in gone], flush=True)
main(), other(), frames()
exec("for epoch in range(1): print(epoch, sorted(k for k in globals() if k < 'a' and k > '_'))")
"""


def test_scripts_that_look_at_their_own_names_see_no_difference(project: Project) -> None:
    """locals() as it was, exec, and objects that are gone when the last name is."""
    project.write("train.py", BEGIN + LOCALS)
    without = project.python("train.py", FLOR_DISABLE="1").stdout

    assert project.python("train.py", FLOR_OVERHEAD="inf").stdout == without


def test_a_loop_that_exec_runs_is_checkpointed_without_its_variables(project: Project) -> None:
    told = train(
        project,
        """
        total = 0
        lines = [
            "with flor.checkpointing(weights=weights):",
            " for epoch in flor.loop('epoch', range(3)):",
            "  for step in flor.loop('step', range(2)):",
            "   weights[0] += 1; total += 1",
        ]
        exec("\\n".join(lines))
        print(total)
        """,
    )

    assert told.count("flor: ") == 1
    look = "import flor; print(*flor.load(epoch=1).items())"
    assert project.python("-c", look, FLOR_DISABLE="1").stdout == "('weights', [4])\n"


def test_a_source_that_is_edited_before_the_loop_is_not_taken_for_what_runs(
    project: Project,
) -> None:
    """Other variables stand on those lines now."""
    told = train(
        project,
        """
        import pathlib
        text = pathlib.Path(__file__).read_text()
        pathlib.Path(__file__).write_text(text.replace("total", "summed"))
        total = summed = 0
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    total += 1
        print(total)
        """,
    )
    look = "import flor; s = flor.load(epoch=1); print(*s); print(s.missing)"
    out = project.python("-c", look, FLOR_DISABLE="1").stdout.splitlines()

    assert told.count("flor: ") == 1
    assert out[0] == "weights"
    assert "not what runs" in out[1]


def test_a_source_that_is_edited_in_a_helper_leaves_out_the_helpers_frame_only(
    project: Project,
) -> None:
    project.write(
        "engine.py",
        "import flor, pathlib\n"
        "pathlib.Path(__file__).write_text('# edited\\n' + pathlib.Path(__file__).read_text())\n"
        "def train_epoch(weights):\n"
        "    seen = 0\n"
        "    for step in flor.loop('step', range(2)):\n"
        "        weights[0] += 1\n"
        "        seen += 1\n",
    )
    told = train(
        project,
        """
        import engine
        best = 0
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                engine.train_epoch(weights)
                best = max(best, weights[0])
        print(best)
        """,
    )

    assert told.count("flor: ") == 1
    found = variables(project)
    assert found == {"epoch": "1", "best": "2"}


def test_a_script_that_is_edited_while_it_trains_keeps_its_variables(project: Project) -> None:
    """As usual: the next experiment is written while this one runs."""
    told = train(
        project,
        """
        import pathlib, time
        total = 0
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    total += 1
                    time.sleep(0.05)
                if epoch == 0:
                    pathlib.Path(__file__).write_text("import flor\\n")
        print(total)
        """,
    )

    assert told == ""
    assert variables(project)["total"] == "4"
