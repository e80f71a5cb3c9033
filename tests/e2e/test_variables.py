"""Which Python variables a checkpoint holds."""

from __future__ import annotations

import textwrap
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest

from tests.e2e.conftest import Project
from tests.e2e.training import train, variables

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
    "what the callables hold that are called": (
        """
        import functools, random
        class Stop:
            def __init__(self): self.best = 0
            def __call__(self, value): self.best += value
        def check(stop, value): return stop(value)
        def make():
            best, rows = 0, []
            def stop(value):
                nonlocal best
                best += value
                rows.append(value)
            return stop
        def plain(value): return value
        stop, passed, each, within, given = (Stop() for _ in range(5))
        every, table, closure = [each, plain, len, lambda x: x], {"a": within, "b": max}, make()
        some, other = [], set()
        append, draw, half = some.append, random.random, functools.partial(round, ndigits=1)
        many = {"add": other.add, "check": functools.partial(check, given)}
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    stop(1), check(passed, 2), closure(step), append(step), draw(), half(0.5)
                    [call([3]) if call is len else call(3) for call in every]
                    table["a"](4), table["b"](1, 2)
                    for call in many.values(): call(5)
        print(stop, every, table, some, other)
        """,
        {
            "closure.__closure__.best": 6,
            "closure.__closure__.rows": [0, 1, 2] * 2,
            "some": [0, 1, 2] * 2,
        },
    ),
    "attributes of classes": (
        """
        class Count:
            total, rows, seen = 0, [], 0
            def step(self, value):
                Count.total += value
                type(self).seen += 1
                self.rows.append(value)
            @classmethod
            def note(cls, value): cls.noted = value
        count = Count()
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    count.step(step)
                    Count.note(step)
        print(count, Count.total)
        """,
        {"Count.total": 6, "Count.seen": 6, "Count.rows": [0, 1, 2] * 2, "Count.noted": 2},
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


def test_objects_that_are_called_are_held_with_their_attributes(project: Project) -> None:
    told = train(
        project,
        """
        import functools
        class Stop:
            def __init__(self): self.n = 0
            def __call__(self, value): self.n += 1
            def step(self): self.n += 1
        def check(stop): return stop(0)
        stop, passed, each, within, given, bound = (Stop() for _ in range(6))
        every, table, partial = [each, print], {"a": within}, functools.partial(check, given)
        go = bound.step
        with flor.checkpointing(weights=weights):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    stop(0), check(passed), table["a"](0), partial(), go()
                    for call in every: call("")
        """,
    )
    found = variables(project)

    names = ["stop", "passed", "every[0]", "table['a']", "partial.args[0]", "go.__self__"]
    assert told == ""
    assert {found.get(name, "")[-9:] for name in names} == {"{'n': 6}>"}


def test_networks_that_are_only_called_are_held_if_that_changes_them(project: Project) -> None:
    """A frozen teacher, losses, and what wraps a declared network are not."""
    pytest.importorskip("torch")
    told = train(
        project,
        """
        import torch
        net, teacher = torch.nn.Linear(300, 300), torch.nn.Linear(300, 300).eval()
        norm, loss = torch.nn.BatchNorm1d(300), torch.nn.MSELoss()
        wrapped, x = torch.nn.DataParallel(net), torch.randn(8, 300)
        losses = [torch.nn.functional.l1_loss, torch.nn.L1Loss()]
        with flor.checkpointing(weights=weights, net=net):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    net.bias.data += 1
                    all = [loss(wrapped(norm(x)), teacher(x)), *(f(net(x), x) for f in losses)]
        """,
    )

    assert told == ""
    held = project.python("-c", "import flor; print(*flor.load(epoch=1))", FLOR_DISABLE="1").stdout
    assert set(held.split()) == {"weights", "net", "norm", "epoch", "step", "all", "x"}


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


REBOUND = {
    "in the loop": """
        params = best = np.zeros(3)
        with flor.checkpointing(params=params):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    params = params + 1
    """,
    "in a function, which gives it back": """
        def train(p):
            for step in flor.loop("step", range(3)):
                p = p + 1
            return p
        def main():
            weights = np.zeros(3)
            with flor.checkpointing(params=weights):
                for epoch in flor.loop("epoch", range(3)):
                    weights = train(weights)
        main()
    """,
    "an attribute": """
        class Trainer:
            def __init__(self): self.params = np.zeros(3)
            def step(self): self.params = self.params + 1
            def fit(self):
                with flor.checkpointing(params=self.params):
                    for epoch in flor.loop("epoch", range(3)):
                        for step in flor.loop("step", range(3)):
                            self.step()
        Trainer().fit()
    """,
    "a global": """
        params = np.zeros(3)
        def train():
            global params
            for step in flor.loop("step", range(3)):
                params = params + 1
        with flor.checkpointing(params=params):
            for epoch in flor.loop("epoch", range(3)):
                train()
    """,
}


@pytest.mark.parametrize("where", REBOUND)
def test_a_declared_name_that_is_bound_to_something_new_is_restored_as_it_is_then(
    project: Project, where: str
) -> None:
    """`params = params - lr * grads`, as one writes with NumPy and JAX."""
    told = train(project, "import numpy as np\n" + textwrap.dedent(REBOUND[where]))
    look = "import flor; s = flor.load(epoch=1); print(s['params'], len(s))"

    assert told == ""
    found = project.python("-c", look, FLOR_DISABLE="1").stdout
    assert found.startswith("[6. 6. 6.]")
    assert project.lines("checkpoint")[-1]["size_bytes"] < 60_000  # random states, for the most


def test_a_declared_name_that_is_bound_to_something_else_is_told_once(project: Project) -> None:
    told = train(
        project,
        """
        class Net:
            def __init__(self): self.n = 1
        class Wrapped:
            def __init__(self, net): self.net = net
        net = Net()
        with flor.checkpointing(net=net):
            for epoch in flor.loop("epoch", range(3)):
                for step in flor.loop("step", range(3)):
                    net = Wrapped(net)
        """,
    )

    assert told.count("flor: ") == 1
    assert "do not hold net: it means a Wrapped now, and a Net was given to checkpointing" in told


def test_functions_between_the_loops_are_held_as_far_as_they_are_plain(project: Project) -> None:
    told = train(
        project,
        """
        class Meter: pass
        def train():
            for step in flor.loop("step", range(3)):
                weights[0] += 1
        def run_epoch(epoch, config):
            total, losses, meter = epoch * 10, [epoch], Meter()
            train()
            return total + len(losses) + meter.value
        def main():
            config = object()
            with flor.checkpointing(weights=weights):
                for epoch in flor.loop("epoch", range(3)):
                    Meter.value = run_epoch(epoch, config)
        Meter.value = 0
        main()
        """,
    )

    assert told.count("flor: ") == 1
    assert "do not hold meter: it is a variable of run_epoch()" in told
    assert variables(project).items() >= {"total": "10", "losses": "[1]", "step": "2"}.items()


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
