"""A statement of the new version in an older one."""

import pytest

import flor
from flor.errors import BadSource, NoPlace
from flor.source.propagate import (
    logging,
    patched,
    propagate,
    propagate_all,
    propagate_through,
)
from flor.source.syntax import Source
from tests.propagating import check, check_refused, picture

# -- FlorET, figure 5.2 ----------------------------------------------------------------------


def test_into_a_block_that_was_alone():
    check(
        """
          i = 0
          j = 0
          a = "Hello"
          if i == 0:
              if j == 0:
                  i = i + 1
                  j = j + 1
        >         print(i)
              else:
                  j = j - 1
          elif i == 1:
              i = i + j
          else:
              i = i - 1
        """,
        """
          i = 0
          if i == 0:
              i = i + 1
        +     print(i)
          else:
              i = i - 1
        """,
    )


def test_before_the_first_of_two_and_the_other_is_told():
    found = check(
        """
          i = 0
          if i == 0:
        >     print(i)
              i = i + 1
          else:
              i = i - 1
        """,
        """
          i = 0
          if i == 0:
        +     print(i)
              i = i + 1
              i = i + 1
          else:
              i = i - 1
        """,
    )
    assert found.probe.line == 3
    assert found.probe.other_line == 4


# -- any statement ---------------------------------------------------------------------------

TRAINING = """
  import logging
  logger = logging.getLogger()
  net, loader, writer = make()
  for epoch in range(9):
      for x, y in loader:
          loss = net(x, y)
          loss.backward()
%s
      net.save()
"""
PROBES = [
    ["print(loss)"],
    ['logger.info("loss %s", loss)'],
    ['writer.add_scalar("loss", loss, epoch)'],
    ["print(", "    loss,  # so far", ")"],
    ["assert loss < 9"],
    ["if loss > 9:", '    print("diverged")', "else:", "    print(loss)"],
    ["for p in net.parameters():", "    print(p.grad)"],
    ["while False:", "    pass"],
    ["with open('f') as f:", "    f.write(str(loss))"],
    ["try:", "    print(loss)", "finally:", "    pass"],
    ["match loss:", "    case 0:", "        print(0)"],
    ["assert loss == loss"],
    ['print("""', "  loss", '""", loss)'],
    ["@print", "def seen():", "    return loss"],
    ["print(loss) # why"],
    ["seen = [p for p in net.parameters()]"],
    ["import math"],
    ["lambda: loss"],
    ["..."],
]


@pytest.mark.parametrize("probe", PROBES, ids=lambda lines: lines[0])
def test_any_statement(probe):
    first, *rest = [" " * 8 + line if line else line for line in probe]
    new = TRAINING % "\n".join([f"> {first}", *[f"  {line}" for line in rest]])
    old = TRAINING % "\n".join([f"+ {line}" for line in [first, *rest]])
    if ";" in first:  # the first of two
        old = old.replace("; print(loss)", "")
    check(new, old.replace("net.save", "net.store").replace("range(9)", "range(5)"))


PLACES = """
> print("begin")
  import functools
  from task import show


  class Trainer:
      def fit(self, data):
          self.prepare(data)
>         print(data)
          return self

      @functools.cache
      @functools.wraps(
          print)
      def step(self, x):
          \"\"\"What it does.\"\"\"
>         print(x)
          def square(y):
              y = y * y
>             print(y)
              return y
          return square(x)


  async def main(stream):
      async for item in stream:
          async with item as opened:
              await opened.read()
>             await show(opened)
      match stream.command:
          case ["go", where]:
              travel(where)
>             print(where)
          case {"stop": when}:
              halt(when)
          case _:
              pass


  if __name__ == "__main__":
      for x in range(3):
          try:
              run(x)
          except ValueError as error:
              report(error)
>             print(error)
          except KeyError:
              report(None)
          else:
              finish(x)
>             print("done")
          finally:
              close()
>             print("closed")
      else:
          celebrate()
>         print("all")
  x = 1
> print(x)
"""


def test_any_place():
    check(PLACES)
    check(PLACES, PLACES.replace("range(3)", "(1, 2)").replace("run(x)", "start(x, 1)"))


ONE_LINE = [
    ("a()\nb(); print(0); c()\n", "a()\nb(); c()\n", 2, "a()\nb(); c()\n"),
    ("if 1:\n    a()\n    print(1)\n", "if 1: a()\n", 3, "if 1: a(); print(1)\n"),
    ("if 1:\n    print(1)\n    a()\n", "if 1: a()\n", 2, "if 1: print(1); a()\n"),
    ("if 1: a()\nprint(1)\n", "if 1: a()\n", 2, "if 1: a()\nprint(1)\n"),
    ("a()\nprint(1)\nb()\n", "a(); b()\n", 2, "a(); print(1); b()\n"),
    ("a()\nfor i in x: c(i)\nb()\n", "a()\nb()\n", 2, "a()\nfor i in x: c(i)\nb()\n"),
    (
        "if 1:\n    a()\n    if a: c(\n     )\n",
        "if 1: a()\n",
        3,
        "if 1: \n    a()\n    if a: c(\n     )\n",
    ),
    ("while 1:\n\ta()\n\tb(1)\n", "while 1:\n  a()\n", 3, "while 1:\n  a()\n  b(1)\n"),
    (
        "def f():\n  a()\n  if 1:\n    b()\n  return a\n",
        "def f():\n\ta()\n\treturn a\n",
        3,
        "def f():\n\ta()\n\tif 1:\n\t\tb()\n\treturn a\n",
    ),
]


@pytest.mark.parametrize(("new", "old", "line", "expected"), ONE_LINE)
def test_lines_with_several_statements_and_other_indentation(new, old, line, expected):
    before = "x = a = b = c = int\n"
    assert patched(before + new, before + old, line + 1) == before + expected


@pytest.mark.parametrize("probe", ["await x", "async with x: pass", "[y async for y in x]"])
def test_what_needs_a_function_that_waits(probe):
    text = "  async def f(x):\n      g(x)\n>     {}\n"
    check(text.format(probe))
    check_refused(text.format(probe), text.replace("async def", "def"), "would not parse.*async")


def test_several_probes():
    found = check(
        """
          total = 0
        > print("begin")
          for i in range(3):
              total += i
        >     print(total)
              total += 1
        > print("end", total)
        """,
        """
          total = 0
        + print("begin")
          for i in range(5):
              total += i
        +     print(total)
        + print("end", total)
        """,
    )
    assert [item.line for item in found.placed] == [2, 5, 6]
    assert found.probes == (0, 1, 2)


def test_several_probes_next_to_each_other_keep_their_order():
    check("  a = 1\n> print(1)\n> print(2)\n> print(3)\n  b = 2")


def test_all_of_several_probes_or_none():
    new = "a = 1\nprint(a)\ndef f():\n    print(2)\n"
    with pytest.raises(NoPlace, match="function f"):
        propagate_all(Source(new), Source("a = 1\n"), [2, 4])


def test_what_a_block_itself_binds_need_not_be_there():
    """Whether it reads it before, depends on values."""
    text = """
      for x in (1, 2):
    >     if x > 1:
    +         late = x
    +     elif x:
    +         try:
    +             y = int(x)
    +         except Exception as error:
    +             late = error
    +         else:
    +             print(late, y)
          print(x)
    """
    check(text)


# -- anchors ---------------------------------------------------------------------------------


def test_a_loop_of_flor_is_found_by_its_name():
    check(
        """
          import flor
          for batch in flor.loop("step", warm(queue)):
              pass
          for e in flor.loop("epoch", range(limit)):
              evaluate(e)
        >     flor.log("e", e)
        """,
        """
          import flor
          for n in flor.loop("epoch", count(start=1)):
              train(n, rate)
              evaluate(n)
        +     flor.log("e", n)
          for batch in flor.loop("step", loader):
              train(batch)
        """,
    )


def test_a_record_of_another_name_is_another_statement():
    check("  import flor\n  a = b = 1\n  flor.log('a', a)\n> flor.log('b', b)")


@pytest.mark.parametrize(
    ("probe", "there"),
    [("print(a)", "print( a )  # more"), ("flor.log('a', a)", 'flor.log("a", float(a))')],
)
def test_what_is_there_already(probe, there):
    old = f"import flor\na = 1\n{there}\nb = 3\n"
    found = propagate(Source(f"import flor\na = 1\n{probe}\nb = 2\n"), Source(old), 3)
    assert (found.text, found.probe.already, found.probe.line) == (old, True, 3)


def test_the_statements_that_log_a_name():
    source = Source(
        "flor.log('loss', 1)\nx = flor.log('loss', 2)\nwriter.add_scalar('loss', 3)\n"
        "flor.log('acc', 4)\nif x:\n    mlflow.log_metric('loss', 5)\n"
    )
    assert [s.first_line for s in logging(source, "loss")] == [1, 2, 3, 6]


# -- refusals --------------------------------------------------------------------------------

REFUSALS = [
    ("def f():\n    print(1)\n", "a = 1\n", 2, "function f"),
    ("class C:\n    def m(self):\n        print(1)\n", "a = 1\n", 3, "class C"),
    ("class C:\n    def m(self):\n        print(1)\n", "class C:\n    x = 1\n", 3, "function m"),
    ("a = 1\nfor i in range(9):\n    print(i)\n", "a = 1\n", 3, "for i in range"),
    ("a = 1\nwhile a:\n    a -= 1\n    print(a)\n", "a = 1\n", 4, "while a"),
    ("a = 1\nif a:\n    b = a + 1\n    print(a)\n", "a = 1\n", 4, "if a"),
    (
        "a = 1\nwith open('f') as f:\n    b = f.read()\n    print(f)\na += b\n",
        "a = 1\n",
        4,
        "with open",
    ),
    ("a = 1\ntry:\n    a = int()\n    print(a)\nfinally:\n    pass\n", "a = 1\n", 4, "try"),
    ("if 1:\n    a = 1\nelse:\n    b = 2\n    print(1)\n", "if 1:\n    a = 1\n", 5, "else"),
    ("a = 1\nprint(a)\n", "", 2, "lacks any statement"),
    ("a = 1\nprint(a)\n", "# nothing\n\n", 2, "lacks any statement"),
    ("import flor\na = 1\nprint(nothing)\n", "import flor\na = 1\n", 3, "'nothing'"),
]


@pytest.mark.parametrize(("new", "old", "line", "what"), REFUSALS)
def test_a_refusal_names_what_is_missing(new, old, line, what):
    with pytest.raises(NoPlace, match=what):
        patched(new, old, line)


@pytest.mark.parametrize(
    ("new", "old", "line", "what"),
    [
        ("a = 1\nb = = 2\n", "a = 1\n", 1, "the new version does not parse: line 2"),
        ("a = 1\n", "a = 1\n\nprint a\n", 1, "the older version does not parse: line 3"),
        ("a = 1\0\n", "a = 1\n", 1, "does not parse"),
        ("a = 1\n\n# b\n", "a = 1\n", 2, "line 2 of the new version holds no statement"),
        ("a = 1\n\n# b\n", "a = 1\n", 3, "line 3 of the new version holds no statement"),
        ("a = 1\n", "a = 1\n", 99, "line 99 of the new version holds no statement"),
        ("a = 1\n", "a = 1\n", 0, "line 0 of the new version holds no statement"),
        ("", "a = 1\n", 1, "line 1 of the new version holds no statement"),
    ],
)
def test_sources_that_cannot_be_used(new, old, line, what):
    with pytest.raises(BadSource, match=what):
        patched(new, old, line)


def test_no_statement_was_named():
    with pytest.raises(BadSource, match="no statement"):
        propagate_all(Source("a = 1\n"), Source("a = 1\n"), [])


# -- by way of versions between --------------------------------------------------------------

NEWEST = """
  def fit(net):
      for batch in net.batches:
          score = net.score(batch)
>         print(score)
"""
MIDDLE = """
  def train(net):
      for batch in net.batches:
          score = net.score(batch)
"""
OLDEST = """
  def train(model):
      prepare(model)
      for piece in stream(model):
          score = model.evaluate(piece, strict=True)
"""


def test_by_way_of_a_version_between():
    (new, _, lines), mid, old = picture(NEWEST), picture(MIDDLE)[0], picture(OLDEST)[0]
    versions = [Source(text) for text in (new, mid, old)]
    with pytest.raises(NoPlace):
        propagate_all(versions[0], versions[2], lines)
    found = propagate_through(versions, lines)
    assert found.text == old + "        print(score)\n"
    assert found.between == 1


def test_no_way_by_versions_between():
    (new, _, lines), mid = picture(NEWEST), picture(MIDDLE)[0]
    with pytest.raises(NoPlace, match="by way of other versions, at step 2"):
        propagate_through([Source(new), Source(mid), Source("a = 1\n")], lines)


def test_the_direct_way_is_taken_where_it_works():
    new, old = picture(NEWEST)[0], picture(NEWEST.replace(">", "+"))[1]
    found = propagate_through([Source(new), Source("a = 1\n"), Source(old)], [4])
    assert (found.text, found.between) == (new, 0)


def test_what_has_been_put_into_a_version_is_found_there():
    text, _, lines = picture(PLACES)
    again = propagate_all(Source(text), Source(check(PLACES).text), lines)
    assert again.text == text
    assert all(item.already for item in again.placed)


def test_an_attribute_that_the_older_class_does_not_set():
    """It can inherit none."""
    new = "class Net:\n    def run(self):\n        self.n = 1\n        a()\n        print(self.n)\n"
    old = "class Net:\n    def run(self):\n        a()\n"
    with pytest.raises(NoPlace, match="no attribute 'n' of self"):
        flor.propagate(new, old, 5)
    inherited = old.replace("class Net:", "class Net(Base):")
    assert "a()\n        print(self.n)\n" in flor.propagate(new, inherited, 5)
