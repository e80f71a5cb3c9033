"""What an older version called things."""

import pytest

from flor.source.renames import Renames, apply
from tests.propagating import check, check_refused

# -- in a text -------------------------------------------------------------------------------

TEXTS = [
    ("print(loss)", "print(cost)"),
    ("print(loss.item(), x.loss, loss.loss)", "print(cost.item(), x.loss, cost.loss)"),
    ("print('loss', \"loss\", '''loss''')", "print('loss', \"loss\", '''loss''')"),
    ("print(loss)  # the loss", "print(cost)  # the loss"),
    ("print(losses, loss_, _loss)", "print(losses, loss_, _loss)"),
    ("f(loss=1)", "f(loss=1)"),
    ("f(loss=loss)", "f(loss=cost)"),
    ("loss = 1", "cost = 1"),
    ("d[loss] = {loss: loss}", "d[cost] = {cost: cost}"),
    ("x = loss if loss else -loss", "x = cost if cost else -cost"),
    ("print(\n    loss,  # loss\n)", "print(\n    cost,  # loss\n)"),
    ("print(f'{loss}')", "print(f'{cost}')"),
    ("print(f'loss {loss}')", "print(f'loss {cost}')"),
    ("print(F'{loss}', rf'{loss}', Rf'{loss}')", "print(F'{cost}', rf'{cost}', Rf'{cost}')"),
    ("print(f'{loss:.3f} {loss!r:>9}')", "print(f'{cost:.3f} {cost!r:>9}')"),
    ("print(f'{x:{loss}}')", "print(f'{x:{cost}}')"),
    ("print(f'{x:{loss}.{loss}f}')", "print(f'{x:{cost}.{cost}f}')"),
    ("print(f'{{loss}} {{{loss}}}')", "print(f'{{loss}} {{{cost}}}')"),
    ("print(f'{loss != 1}')", "print(f'{cost != 1}')"),
    ("print(f'{d[\"loss\"]} {d[loss]}')", "print(f'{d[\"loss\"]} {d[cost]}')"),
    ("print(f'{x.loss} {f(loss=2)}')", "print(f'{x.loss} {f(loss=2)}')"),
    ("print(f'{(lambda: loss)()}')", "print(f'{(lambda: cost)()}')"),
    ("print(f'''\n{loss}\nloss''')", "print(f'''\n{cost}\nloss''')"),
    ("print(f'{ {loss: 1}[loss] }')", "print(f'{ {cost: 1}[cost] }')"),
    ("print('{loss}'.format(loss=loss))", "print('{loss}'.format(loss=cost))"),
    ("print(b'loss', r'loss', u'loss')", "print(b'loss', r'loss', u'loss')"),
    ("print(f'loss' 'loss' f'{loss}')", "print(f'loss' 'loss' f'{cost}')"),
    ("def seen(loss=loss): return loss", "def seen(cost=cost): return cost"),
    ("x = lambda loss: loss", "x = lambda cost: cost"),
    ("for loss in losses: print(loss)", "for cost in losses: print(cost)"),
    ("if loss == 1 and f(a, loss == 2): pass", "if cost == 1 and f(a, cost == 2): pass"),
    ("x[loss:loss]", "x[cost:cost]"),
    ("näme(loss)", "näme(cost)"),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_a_variable_is_renamed_and_nothing_else(text, expected):
    assert apply(text, Renames({"loss": "cost"})) == expected


def test_a_name_is_told_in_an_f_string_that_shows_it():
    """With `=` the printed text changes, and there is no other way to show the value."""
    assert apply("f'{loss=}'", Renames({"loss": "cost"})) == "f'{cost=}'"
    assert apply("f'{loss = :.2f}'", Renames({"loss": "cost"})) == "f'{cost = :.2f}'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("self.loss(loss, loss=loss)", "self.cost(loss, loss=loss)"),
        ("x . loss", "x . cost"),
        ("f'{self.loss}.loss'", "f'{self.cost}.loss'"),
        ("(\n    a\n    .loss\n)", "(\n    a\n    .cost\n)"),
    ],
)
def test_an_attribute(text, expected):
    assert apply(text, Renames(attributes={"loss": "cost"}, own={"loss": "cost"})) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(loss, loss=loss)", "f(loss, cost=loss)"),
        ("f(a, (b),\n  loss = loss)", "f(a, (b),\n  cost = loss)"),
        ("f'{f(loss=1)} loss=1'", "f'{f(cost=1)} loss=1'"),
        ("loss = f(loss == 1)", "loss = f(loss == 1)"),
        ("def f(a, loss=1): pass", "def f(a, loss=1): pass"),
    ],
)
def test_a_keyword(text, expected):
    assert apply(text, Renames(keywords={"loss": "cost"})) == expected


# -- in two versions -------------------------------------------------------------------------

VERSIONS = {
    "variable": """
      def train(net, data):
          NAME = net(data)
          NAME.backward()
    %     print(f"loss {NAME:.3f}", NAME.loss)  # loss
          return NAME
    """,
    "parameter": """
      def train(net, NAME):
          NAME.backward(net)
    %     print(NAME)
          return net
    """,
    "attribute": """
      class Net:
          def __init__(self, size):
              self.NAME = size
          def step(self, x):
              x = self.NAME + x
    %         print(self.NAME, "loss", x)
              return x
    """,
    "function": """
      def NAME(x):
          y = x * x
          return y + 1
      x = 1
      x = NAME(x)
    % print(x, NAME(2))
    """,
    "loop target": """
      for NAME in range(9):
          run(NAME)
    %     print(NAME)
    """,
    "one of two loop targets": """
      for NAME, batch in enumerate(data):
          run(NAME, batch)
    %     print(NAME, batch)
    """,
    "import alias": """
      import numpy as NAME
      x = NAME.zeros(3)
    % print(NAME.mean(x))
    """,
    "keyword": """
      from task import plot
      x = plot(1, NAME=1)
      x = plot(2, NAME=2)
    % plot(x, NAME=3)
      x.save()
    """,
    "with": """
      with open("file") as NAME:
          x = NAME.read()
    %     print(NAME.name)
    """,
    "method": """
      class Net:
          def NAME(self, x):
              y = x * x
              return y + self.bias
          def step(self, x):
              y = self.NAME(x)
    %         print(self.NAME(y))
              return y
    """,
    "variable of the module": """
      NAME = 0.1
      step(NAME)
      def train(x):
          x = x + 1
    %     print(NAME, x)
          return x
    """,
    "variable of an enclosing function": """
      from task import data
      def train():
          NAME = len(data)
          def step(x):
              x = x + 1
    %         print(NAME, x)
              return x
          step(NAME)
    """,
    "probe that binds": """
      from task import data, net
      for x in data:
    %     NAME = net(x)
          NAME.backward()
    """,
}


@pytest.mark.parametrize("what", VERSIONS)
def test_renamed(what):
    new, old = VERSIONS[what].replace("%", ">"), VERSIONS[what].replace("%", "+")
    check(new.replace("NAME", "loss"), old.replace("NAME", "cost"))


def test_names_with_a_digit():
    text = """
      from task import net
      {0}, {1} = net(), net()
      net.step({0}, {1})
    %     print({0}, {1}, .5)
    """.replace("%    ", "%")
    check(text.format("f1", "x2").replace("%", ">"), text.format("g1", "y2").replace("%", "+"))


def test_two_names_that_have_changed_places():
    """Each means something else in the older version, and both have a value there."""
    text = """
      def f({0}, {1}):
          use({0}, kind=1)
          train({1}, kind=2)
    %     print({0})
    """
    check(text.format("a", "b").replace("%", ">"), text.format("c", "d").replace("%", "+"))


def test_a_name_is_not_guessed():
    """Two names of the older version could be it."""
    check_refused(
        """
          def f(data):
              loss = first(data)
              step(loss)
              loss = second(data)
              step(loss)
        >     print(loss)
              return loss
        """,
        """
          def f(data):
              a = first(data)
              step(a)
              b = second(data)
              step(b)
              return None
        """,
        "'loss'",
    )


def test_renames_are_told():
    text = VERSIONS["variable"]
    new, old = text.replace("%", ">"), text.replace("%", "+")
    found = check(new.replace("NAME", "loss"), old.replace("NAME", "cost"))
    assert found.probe.renames == Renames({"loss": "cost"}, {}, {})


def test_nothing_is_renamed_to_a_constant():
    new = "  try:\n      f()\n  except E as error:\n      g(error)\n>     print(error)"
    old = "  try:\n      f()\n  except E:\n      g(None)\n"
    check_refused(new, old, "'error'")
