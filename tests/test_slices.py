"""What travels with a statement."""

import pytest

from tests.propagating import check, check_refused

TRAVELS = {
    "imports and functions, each to its place": """
          import torch
        + import numpy as np
        + from math import sqrt

        + def norm(model):
        +     return sqrt(np.sum([p * p for p in model]))
        +
          def train(model, data):
              for batch in data:
                  model.step(batch)
        >         print(norm(model))
    """,
    "a class with what it needs": """
          import os
        + import time

        + class Clock:
        +     def now(self):
        +         return time.time()
        +
          def main():
              run(os.getcwd())
        >     print(Clock().now())

          main()
    """,
    "an import with what is done without it": """
          import sys
        + try:
        +     import json
        + except ImportError:
        +     json = None
          data = sys.argv
        > print(json.dumps(data))
    """,
    "a local import": """
          def f(x):
        +     from math import log
              y = x + 1
        >     print(log(y))
              return y
    """,
    "functions that call themselves and each other": """
        + def even(n):
        +     return n == 0 or odd(n - 1) or even(n - 2)
        +
        + def odd(n):
        +     return n > 0 and even(n - 1)
        +
          count = read()
        > print(even(count))
    """,
    "variables that nothing else reads": """
          def train(net, data):
        +     seen = len(data)
              for x, y in data:
                  out = net(x)
        +         best = out.argmax(1)
        +         right = (best == y).sum()
        >         print(right / seen)
                  loss = out - y
    """,
    "a constant of the module": """
          import sys
        + FORMAT = "%5.2f"

          def show(loss):
              loss = loss * 2
        >     print(FORMAT % loss)
              return loss
    """,
    "a with around it": """
          import torch
          from task import metric
          for x in data:
              loss = net(x)
        +     with torch.no_grad():
        +         score = metric(loss)
        >         print(score)
              loss.backward()
    """,
    "nothing that exists": """
          from torch import nn
          import numpy as np

          class Meter:
              pass

          def train(model):
              meter = Meter()
              model.step()
        >     print(np.mean(meter), nn)
    """,
}


@pytest.mark.parametrize("what", TRAVELS)
def test_what_travels(what):
    found = check(TRAVELS[what])
    assert all(item.line == item.new_line for item in found.placed)


READ_BY_THE_PROGRAM = [
    "total = total + scale",
    "if scale: total = 0",
    "while scale: total = 0",
    "total[scale] = 1",
    "total = (lambda: scale)()",
    "total = [scale for _ in range(3)]",
    "return scale",
    "step(scale)",
    "scale.backward()",
    "scale.update(total)",
]


@pytest.mark.parametrize("use", READ_BY_THE_PROGRAM)
def test_what_the_program_itself_uses_does_not_travel(use):
    check_refused(
        f"""
          def train(total):
              scale = compute()
              step(total)
        >     print(scale)
              {use}
        """,
        f"""
          def train(total):
              step(total)
              {use.replace("scale", "total")}
        """,
        r"'scale' has no value there.*line 2 does, and not for this alone",
    )


@pytest.mark.parametrize("inside", ["loss = net(y)", "opt.step()"])
def test_a_with_around_the_training_does_not_travel(inside):
    new = """
          from task import data, lock, loss, net, opt, step
          for x in data:
              y = x + 1
        +     with lock:
        +         {}
        >         print(y, loss)
              step(loss)
    """
    old = "from task import data, lock, loss, net, opt, step\nfor x in data:\n    other(x)\n"
    check_refused(new.format(inside), old, "with lock")


def test_several_probes_in_one_block_travel_once():
    text = """
          import torch
          for x in data:
              y = x * 2
        +     with torch.no_grad():
        >         print(x)
        >         print(x, y)
    """
    found = check(text, text.replace(" x", " item").replace("(x", "(item"))
    assert found.probes == (0, 0)


# -- with a base -----------------------------------------------------------------------------

ADDED = {
    "a rebinding": """
          for x, y in loader:
              preds = net(x)
              loss = crit(preds, y)
        +     preds = preds.argmax(1)
        >     print((preds == y).sum())
    """,
    "an if around it": """
          for epoch in range(5):
              for x in loader:
                  loss = net(x)
                  loss.step()
        +         if epoch % 10 == 0:
        +             scaled = loss * 2
        >             print(epoch, scaled)
    """,
    "a counter": """
        + steps = 0
          for x in data:
              train(x)
        +     steps += 1
        >     print(steps)
          finish()
    """,
}


@pytest.mark.parametrize("what", ADDED)
def test_what_was_added_travels(what):
    text = ADDED[what]
    check(text, text.replace("epoch", "e").replace("loss", "cost"), text)


def test_what_was_not_added_stays():
    text = """
          def train(data):
              rate = schedule()
              step(data)
        >     print(rate)
    """
    check_refused(text, "def train(data):\n    step(data)\n", "'rate'", text)
