"""What travels with a statement."""

import pytest

from tests.propagating import check, check_refused

# -- imports, functions, classes -------------------------------------------------------------


def test_imports_and_functions_travel_each_to_its_place():
    found = check(
        """
          import torch
          import numpy as np
          from math import sqrt

          def norm(model):
              return sqrt(np.sum([p * p for p in model]))

          def train(model, data):
              for batch in data:
                  model.step(batch)
        >         print(norm(model))
        """,
        """
          import torch
        + import numpy as np
        + from math import sqrt

        + def norm(model):
        +     return sqrt(np.sum([p * p for p in model]))
        +
          def train(model, data):
              for batch in data:
                  model.step(batch)
        +         print(norm(model))
        """,
    )
    assert [item.new_line for item in found.placed] == [2, 3, 5, 11]
    assert found.probes == (3,)
    assert [item.line for item in found.placed] == [2, 3, 5, 11]


def test_what_exists_is_not_added_twice():
    check(
        """
          from torch import nn
          import numpy as np

          class Meter:
              def add(self, x):
                  self.x = x

          def train(model):
              meter = Meter()
              model.step()
        >     print(np.mean(meter), nn)
        """,
        """
          import numpy as np
          from torch import nn

          class Meter:
              pass

          def train(model):
              meter = Meter()
              model.step()
        +     print(np.mean(meter), nn)
        """,
    )


def test_a_class_travels_with_what_it_needs():
    check(
        """
          import os
          import time

          class Clock:
              def now(self):
                  return time.time()

          def main():
              run(os.getcwd())
        >     print(Clock().now())

          main()
        """,
        """
          import os
        + import time

        + class Clock:
        +     def now(self):
        +         return time.time()
        +
          def main():
              run(os.getcwd())
        +     print(Clock().now())

          main()
        """,
    )


def test_an_import_travels_with_what_is_done_without_it():
    check(
        """
          import sys
          try:
              import json
          except ImportError:
              json = None
          data = sys.argv
        > print(json.dumps(data))
        """,
        """
          import sys
        + try:
        +     import json
        + except ImportError:
        +     json = None
          data = sys.argv
        + print(json.dumps(data))
        """,
    )


def test_a_local_import_travels():
    check(
        """
          def f(x):
              from math import log
              y = x + 1
        >     print(log(y))
              return y
        """,
        """
          def f(x):
        +     from math import log
              y = x + 1
        +     print(log(y))
              return y
        """,
    )


def test_a_function_that_calls_itself_travels_once():
    check(
        """
          def depth(x):
              return 1 + depth(x[0]) if x else 0

          tree = read()
        > print(depth(tree))
        """,
        """
        + def depth(x):
        +     return 1 + depth(x[0]) if x else 0
        +
          tree = read()
        + print(depth(tree))
        """,
    )


def test_functions_that_call_each_other_travel_once():
    check(
        """
          def even(n):
              return n == 0 or odd(n - 1)

          def odd(n):
              return n > 0 and even(n - 1)

          count = read()
        > print(even(count))
        """,
        """
        + def even(n):
        +     return n == 0 or odd(n - 1)
        +
        + def odd(n):
        +     return n > 0 and even(n - 1)
        +
          count = read()
        + print(even(count))
        """,
    )


# -- variables -------------------------------------------------------------------------------


def test_variables_that_serve_the_probe_alone_travel():
    check(
        """
          def train(net, data):
              seen = len(data)
              for x, y in data:
                  out = net(x)
                  best = out.argmax(1)
                  right = (best == y).sum()
        >         print(right / seen)
                  loss = out - y
        """,
        """
          def train(net, data):
        +     seen = len(data)
              for x, y in data:
                  out = net(x)
        +         best = out.argmax(1)
        +         right = (best == y).sum()
        +         print(right / seen)
                  loss = out - y
        """,
    )


def test_a_constant_of_the_module_travels():
    check(
        """
          import sys
          FORMAT = "%5.2f"

          def show(loss):
              loss = loss * 2
        >     print(FORMAT % loss)
              return loss
        """,
        """
          import sys
        + FORMAT = "%5.2f"

          def show(loss):
              loss = loss * 2
        +     print(FORMAT % loss)
              return loss
        """,
    )


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


@pytest.mark.parametrize("how", ["total += 1", "total = next(stream)", "del total[0]"])
def test_a_loop_s_variable_that_the_program_changes_does_not_travel(how):
    check_refused(
        f"""
          def train(stream):
              total = [0]
              for x in stream:
                  step(x)
                  {how}
                  step(total)
        >         print(total)
                  total.clear()
              return total
        """,
        """
          def train(stream):
              for x in stream:
                  step(x)
                  step(0)
              return 0
        """,
        "'total'",
    )


# -- blocks ----------------------------------------------------------------------------------


def test_a_with_around_the_probe_travels():
    check(
        """
          import torch
          from task import metric
          for x in data:
              loss = net(x)
              with torch.no_grad():
                  score = metric(loss)
        >         print(score)
              loss.backward()
        """,
        """
          import torch
          from task import metric
          for x in data:
              loss = net(x)
        +     with torch.no_grad():
        +         score = metric(loss)
        +         print(score)
              loss.backward()
        """,
    )


def test_a_with_around_the_training_does_not_travel():
    check_refused(
        """
          import torch
          from task import data, net, step
          for x in data:
              y = x + 1
              with torch.autocast():
                  loss = net(y)
        >         print(loss)
              loss.backward()
        """,
        """
          import torch
          from task import data, net, step
          for x in data:
              step(x)
        """,
        "with torch.autocast",
    )


def test_a_with_that_holds_training_does_not_travel():
    check_refused(
        """
          from task import opt, data, lock
          for x in data:
              y = x * 2
              with lock:
                  opt.step()
        >         print(y)
        """,
        """
          from task import opt, data, lock
          for x in data:
              y = x * 2
              y = y + 1
        """,
        "with lock",
    )


def test_several_probes_in_one_block_travel_once():
    text = """
      import torch
      for %s in data:
          y = %s * 2
    %%     with torch.no_grad():
    %%         print(%s)
    %%         print(%s, y)
      """
    new = (text % ("x", *["x"] * 3)).replace("%     with", "      with").replace("%", ">")
    old = (text % ("item", *["item"] * 3)).replace("%", "+")
    found = check(new, old)
    assert found.probes == (0, 0)


# -- with a base -----------------------------------------------------------------------------

BASE = """
  for epoch in range(9):
      for x, y in loader:
          preds = net(x)
          loss = crit(preds, y)
          loss.backward()
      net.save()
"""
OLD = """
  for e in range(5):
      for x, y in loader:
          preds = net(x)
          loss = crit(preds, y)
          loss.step()
"""


def test_a_rebinding_travels_if_it_was_added():
    check(
        BASE.replace(
            "          loss.backward()",
            "          loss.backward()\n"
            "          preds = preds.argmax(1)\n"
            ">         print((preds == y).sum())",
        ),
        OLD.replace(
            "          loss.step()",
            "          loss.step()\n"
            "+         preds = preds.argmax(1)\n"
            "+         print((preds == y).sum())",
        ),
        BASE,
    )


def test_an_if_around_the_probe_travels_if_it_was_added():
    new = BASE.replace(
        "          loss.backward()",
        "          loss.backward()\n"
        "          if epoch % 10 == 0:\n"
        "              scaled = loss * 2\n"
        ">             print(epoch, scaled)",
    )
    old = OLD.replace(
        "          loss.step()",
        "          loss.step()\n"
        "+         if e % 10 == 0:\n"
        "+             scaled = loss * 2\n"
        "+             print(e, scaled)",
    )
    check(new, old, BASE)
    check_refused(new, OLD, "if epoch % 10")


def test_a_counter_travels_if_it_was_added():
    check(
        """
          steps = 0
          for x in data:
              train(x)
              steps += 1
        >     print(steps)
        """,
        """
        + steps = 0
          for x in data:
              train(x)
        +     steps += 1
        +     print(steps)
          finish()
        """,
        """
          for x in data:
              train(x)
        """,
    )


def test_what_was_not_added_stays():
    check_refused(
        """
          def train(data):
              rate = schedule()
              step(data)
        >     print(rate)
        """,
        """
          def train(data):
              step(data)
        """,
        "'rate'",
        """
          def train(data):
              rate = schedule()
              step(data)
        """,
    )
