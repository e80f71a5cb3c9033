"""Which Python variables a checkpoint holds, and that looking for them does nothing."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest

from tests.e2e.conftest import Project

BEGIN = "import flor\nweights = [0]\n"
LOOK = """
import json, flor
state = flor.load(epoch=1)
print(json.dumps({name: repr(value) for name, value in state.items() if name != "weights"}))
"""


def train(project: Project, body: str, **env: str) -> str:
    """Run a script with checkpoints of each epoch; what it told on stderr."""
    project.write("train.py", BEGIN + textwrap.dedent(body))
    return project.python("train.py", **({"FLOR_OVERHEAD": "inf"} | env)).stderr


def variables(project: Project) -> dict[str, str]:
    """The variables of epoch 1, each as it is printed."""
    found: dict[str, str] = json.loads(project.python("-c", LOOK, FLOR_DISABLE="1").stdout)
    return found


# --- held ---------------------------------------------------------------------------------------

# The checkpoint is that of epoch 1: two epochs of three steps are over but for the rest of it.
HELD: dict[str, tuple[str, dict[str, Any]]] = {
    "running sums, counters, the best and patience": (
        """
        best, patience, total, seen = 0.0, 5, 0.0, 0
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    weights[0] += 1
                    total += 0.5
                    seen = seen + 2
                acc = weights[0] / 10
                if acc > best:
                    best = acc
                else:
                    patience -= 1
        print(best, patience, total, seen)
        """,
        {"best": 0.3, "patience": 5, "total": 3.0, "seen": 12, "epoch": 1, "step": 2},
    ),
    "containers that are changed in place": (
        """
        from collections import Counter, OrderedDict, defaultdict, deque
        losses, table, seen, recent = [], {}, set(), deque(maxlen=2)
        counts, groups, order = Counter(), defaultdict(list), OrderedDict()
        raw, nested = bytearray(), {"a": {"b": [0]}}
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    losses.append(step)
                    table[epoch, step] = step
                    table.update(last=epoch)
                    seen.add(epoch)
                    recent.append(10 * epoch + step)
                    counts["a"] += 1
                    groups[epoch].append(step)
                    order[step] = epoch
                    raw.extend(b"x")
                    nested["a"]["b"][0] += 1
        print(losses, table, seen, recent, counts, groups, order, raw, nested)
        """,
        {
            "losses": [0, 1, 2, 0, 1, 2],
            "table": {(0, 0): 0, "last": 1} | {(e, s): s for e in (0, 1) for s in range(3)},
            "seen": {0, 1},
            "recent": deque([11, 12], maxlen=2),
            "counts": Counter(a=6),
            "groups": defaultdict(list, {0: [0, 1, 2], 1: [0, 1, 2]}),
            "order": OrderedDict([(0, 1), (1, 1), (2, 1)]),
            "raw": bytearray(b"xxxxxx"),
            "nested": {"a": {"b": [6]}},
        },
    ),
    "attributes of a trainer": (
        """
        class Trainer:
            def __init__(self):
                self.best, self.seen, self.losses, self.name = None, 0, [], "a"
            def step(self, loss):
                self.seen += 1
                self.losses.append(loss)
            def fit(self):
                with flor.checkpointing(weights=weights):
                    for self.epoch in flor.loop("epoch", range(3)):
                        for step in flor.loop("step", range(3)):
                            self.step(step)
                        self.best = self.seen
                return self.best
        print(Trainer().fit())
        """,
        {"self.best": 3, "self.seen": 6, "self.losses": [0, 1, 2, 0, 1, 2], "self.epoch": 1},
    ),
    "globals that a function changes": (
        """
        count, log = 0, []
        def note(value):
            global count
            count += 1
            log.append(value)
        def main():
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(3)):
                    for step in flor.loop("step", range(3)):
                        note(step)
        main()
        """,
        {"global count": 6, "global log": [0, 1, 2, 0, 1, 2]},
    ),
    "nonlocals of a closure": (
        """
        def main():
            count, log = 0, []
            def note(value):
                nonlocal count
                count += 1
                log.append(value)
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(3)):
                    for step in flor.loop("step", range(3)):
                        note(step)
            return count, log
        main()
        """,
        {"count": 6, "log": [0, 1, 2, 0, 1, 2]},
    ),
    "nonlocals of the function around": (
        """
        def main():
            count = 0
            def fit():
                nonlocal count
                with flor.checkpointing(weights=weights):
                    for epoch in flor.loop("epoch", range(3)):
                        for step in flor.loop("step", range(3)):
                            count += 1
            fit()
            return count
        main()
        """,
        {"nonlocal count": 6},
    ),
    "targets of all kinds": (
        """
        a = b = 0
        first, *rest = 0, 0
        (x, [y, z]) = 0, (0, 0)
        total: float = 0.0
        table = [0, 0]
        class Box: pass
        box = Box()
        box.value = 0
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step, (left, right) in flor.loop("step", [(0, (1, 2)), (1, (3, 4))]):
                    a, b = b + 1, a + 2
                    first, *rest = first + 1, step, step
                    x, [y, z] = y + 1, (z + 1, x + 1)
                    total: float = total + 0.5
                    table[step] += 1
                    table[step:step + 1] = [table[step]]
                    box.value += 1
                    squares = [item * item for item in range(step + 1)]
                    if (doubled := step * 2) > 1:
                        big = doubled
                    with open(__file__) as file:
                        size = len(file.read()) > 0
                    try:
                        raise ValueError
                    except ValueError as error:
                        failed = True
        print(a, b, first, rest, x, y, z, total, table, box.value, squares, doubled, big, size, failed)
        """,
        {
            **{"a": 6, "b": 6, "first": 4, "rest": [1, 1], "total": 2.0, "table": [2, 2]},
            **{"box.value": 4, "squares": [0, 1], "doubled": 2, "big": 2, "left": 3, "right": 4},
            **{"size": True, "failed": True},
        },
    ),
    "what other names stand for": (
        """
        a = b = []
        c = a
        pair = (a, [])
        inner = pair[1]
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    c.append(step)
                    inner.append(step)
        print(a, b, c, pair)
        """,
        {"a": [0, 1, 2] * 2, "b": [0, 1, 2] * 2, "pair": ([0, 1, 2] * 2, [0, 1, 2] * 2)},
    ),
    "what a function changes in its argument": (
        """
        stats, rows = {"n": 0}, []
        def update(into, value, more=()):
            into["n"] += value
            keep(more, value)
        def keep(rows, value):
            rows.append(value)
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    update(stats, step, more=rows)
        print(stats, rows)
        """,
        {"stats": {"n": 6}, "rows": [0, 1, 2] * 2},
    ),
    "what a function of another module changes in its argument": (
        """
        import engine
        stats, rows = {"n": 0}, []
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    engine.update(stats, rows, step)
        print(stats, rows)
        """,
        {"stats": {"n": 6}, "rows": [0, 1, 2] * 2},
    ),
    "the frame of the training loop in a function": (
        """
        def train_epoch(lr):
            total, losses = 0, []
            for step in flor.loop("step", range(3)):
                total += step
                losses.append(step * lr)
            return total, losses
        def main():
            best = 0
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(3)):
                    best += train_epoch(epoch)[0]
            return best
        main()
        """,
        {"best": 3, "total": 3, "losses": [0, 1, 2]},
    ),
    "without a nested loop": (
        """
        best, log = 0, []
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                best += epoch
                log.append(best)
        print(best, log)
        """,
        {"best": 1, "log": [0, 1], "epoch": 1},
    ),
    "long lists of numbers": (
        """
        floats, ints, mixed = [], [], []
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(2)):
                for step in flor.loop("step", range(100)):
                    floats.append(step / 2)
                    ints.append(step)
                    mixed.append((step, float(step)))
        print(floats, ints, mixed)
        """,
        {
            "floats": [step / 2 for step in range(100)] * 2,
            "ints": [*range(100)] * 2,
            "mixed": [(step, float(step)) for step in range(100)] * 2,
        },
    ),
    "del and conditional bindings": (
        """
        total = 0
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    batch = [step] * 3
                    total += sum(batch)
                    del batch
                    if epoch == 5:
                        never = 1
        print(total)
        """,
        {"total": 18, "epoch": 1, "step": 2},
    ),
    "a shadowed and an unread name": (
        """
        list = 3
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    list += 1
                    unread = step + epoch
                    _ = "text"
        """,
        {"list": 9, "unread": 3},
    ),
    "plain loops around and inside": (
        """
        total = 0
        for fold in range(1):
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(3)):
                    for step in flor.loop("step", range(3)):
                        for layer in range(2):
                            total += 1
                        while total % 2:
                            total += 1
        print(total)
        """,
        {"total": 12, "layer": 1, "step": 2},
    ),
}


@pytest.mark.parametrize("what", HELD)
def test_what_the_loop_carries_on_is_held(project: Project, what: str) -> None:
    body, expected = HELD[what]
    project.write(
        "engine.py",
        "def update(into, rows, value):\n    into['n'] += value\n    rows.append(value)\n",
    )
    told = train(project, body)
    found = variables(project)

    assert told == ""
    assert {name: found.get(name) for name in expected} == {
        name: repr(value) for name, value in expected.items()
    }
    assert "batch" not in found


def test_objects_of_the_users_own_classes_are_held_with_their_attributes(project: Project) -> None:
    """As a dictionary of them, unless an object of the class is there to take them."""
    classes = """
import dataclasses, enum
class Meter:
    def __init__(self): self.sum, self.n, self.history = 0.0, 0, []
    def update(self, value): self.sum += value; self.n += 1; self.history.append(value)
@dataclasses.dataclass
class Best:
    acc: float = 0.0
    epoch: int = -1
class Phase(enum.Enum):
    WARM, HOT = 1, 2
"""
    project.write("metrics.py", classes)
    told = train(
        project,
        """
        from metrics import *
        meter, best, phase, meters = Meter(), Best(), Phase.WARM, {"a": Meter()}
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    meter.update(step)
                    meters["a"].update(step)
                    phase = Phase.HOT
                    if step > best.acc:
                        best = Best(step, epoch)
        print(meter, best, phase, meters)
        """,
    )
    look = """
import flor
from metrics import *
state = flor.load(epoch=1)
print(dict(state["meter"]), state["meters"]["a"]["n"], dict(state["best"]), state["phase"])
meter, best = Meter(), Best()
flor.load(epoch=1, meter=meter, best=best)
print(meter.sum, meter.n, meter.history, best)
"""
    out = project.python("-c", look, FLOR_DISABLE="1").stdout.splitlines()

    assert told == ""
    assert out == [
        "{'sum': 6.0, 'n': 6, 'history': [0, 1, 2, 0, 1, 2]} 6 {'acc': 2, 'epoch': 0} Phase.HOT",
        "6.0 6 [0, 1, 2, 0, 1, 2] Best(acc=2, epoch=0)",
    ]


def test_arrays_and_library_objects_are_held(project: Project) -> None:
    told = train(
        project,
        """
        import datetime, decimal, fractions, pathlib, random
        import numpy as np
        mean, matrix, best = np.zeros(3), None, np.float32(0)
        own, draws = random.Random(1), np.random.default_rng(2)
        when, exact, path = datetime.date(2026, 1, 1), decimal.Decimal(0), pathlib.Path("a")
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    mean = 0.5 * mean + step
                    matrix = np.eye(2) * step
                    best = max(best, np.float32(step))
                    own.random()
                    draws.random()
                    when += datetime.timedelta(days=1)
                    exact += decimal.Decimal("0.1")
                    path = path / str(step)
        print(mean, matrix, best, own.random(), draws.random(), when, exact, path)
        """,
    )
    look = """
import random
import numpy as np, flor
state = flor.load(epoch=1)
own, draws = random.Random(1), np.random.default_rng(2)
for _ in range(6):
    own.random(), draws.random()
print(state["mean"].tolist(), state["matrix"].tolist(), repr(state["best"]))
print(state["own"].random() == own.random(), state["draws"].random() == draws.random())
print(state["when"], state["exact"], state["path"].as_posix())
"""
    out = project.python("-c", look, FLOR_DISABLE="1").stdout.splitlines()

    assert told == ""
    assert out == [
        "[2.8125, 2.8125, 2.8125] [[2.0, 0.0], [0.0, 2.0]] np.float32(2.0)",
        "True True",
        "2026-01-07 0.6 a/0/1/2/0/1/2",
    ]


def test_a_declared_name_that_is_bound_to_something_new_is_restored_as_it_is_then(
    project: Project,
) -> None:
    """`params = params - lr * grads`, as one writes with NumPy and JAX."""
    told = train(
        project,
        """
        import numpy as np
        params = np.zeros(3)
        with flor.checkpointing(params=params, weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    params = params + 1
        """,
    )
    look = "import flor; print(flor.load(epoch=1)['params'])"

    found = project.python("-c", look, FLOR_DISABLE="1").stdout
    assert found == "[6. 6. 6.]\n" or "params" in told


def test_what_variables_share_with_declared_objects_is_held_once(project: Project) -> None:
    """8 MB in three places."""
    told = train(
        project,
        """
        import numpy as np
        big = np.zeros(1_000_000)
        alias, box = big, {"big": big}
        class Net:
            def __init__(self): self.w = big
            def state_dict(self): return {"w": self.w}
            def load_state_dict(self, state): self.w[:] = state["w"]
        net = Net()
        with flor.checkpointing(net=net, big=big):
            for epoch in flor.loop("epoch", range(2)):
                for step in flor.loop("step", range(3)):
                    alias += 1
                    box["big"] += 1
                    net.w += 1
        print(alias, box)
        """,
    )

    assert told == ""
    for line in project.lines("checkpoint"):
        assert line["size_bytes"] < 9_000_000
        assert line["new_bytes"] < 9_000_000
    look = "import flor; s = flor.load(epoch=1); print(s['big'][3], s['net']['w'][3])"
    assert project.python("-c", look, FLOR_DISABLE="1").stdout == "18.0 18.0\n"


def test_a_declared_object_of_ones_own_is_not_held_again_as_a_variable(project: Project) -> None:
    """What its `state_dict` gives is what there is of it."""
    train(
        project,
        """
        import numpy as np
        class Net:
            def __init__(self): self.w = np.zeros(1_000_000)
            def state_dict(self): return {"w": self.w.copy()}
            def load_state_dict(self, state): self.w[:] = state["w"]
        net = Net()
        with flor.checkpointing(net=net):
            for epoch in flor.loop("epoch", range(2)):
                for step in flor.loop("step", range(3)):
                    net.w += np.random.rand(1_000_000)
        """,
    )

    assert "net.w" not in project.flor("checkpoints")
    assert project.lines("checkpoint")[-1]["size_bytes"] < 9_000_000


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
    return sorted(re.findall(r"^flor: checkpoints do not hold (\S+),", told, re.MULTILINE))


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
    def items(self): print("items"); return super().items()
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
    """`state_dict` of what has it, once for each checkpoint."""
    project.write(
        "train.py",
        BEGIN
        + textwrap.dedent("""
        class Net:
            def __init__(self): self.asked = 0
            def state_dict(self):
                self.asked += 1
                return {"asked": self.asked}
            def load_state_dict(self, state): raise RuntimeError
        net, carried = Net(), Net()
        with flor.checkpointing(net=net):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(2)):
                    carried = carried
        print(net.asked, carried.asked)
        """),
    )

    assert project.python("train.py", FLOR_OVERHEAD="inf").stdout == "3 3\n"
    assert project.python("train.py", FLOR_OVERHEAD="0").stdout == "1 1\n"


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
